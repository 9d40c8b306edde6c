// The XML that stores answer with. A browser takes the parser for a way into the page, so the page's policy allows this
// one use of it: what it makes is an XML document of its own, which is read and never becomes part of the page.

const policy = globalThis.trustedTypes?.createPolicy('qo-xml', {createHTML: (text) => text});

export function parseXml(text) {
  return new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, 'application/xml');
}
