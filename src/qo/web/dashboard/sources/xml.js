// Parses XML responses of stores. Browsers treat the parser as a way to inject code, so the policy of the page allows this
// one use. The result is a separate XML document, which never becomes part of the page.

const policy = globalThis.trustedTypes?.createPolicy('qo-xml', {createHTML: (text) => text});

export function parseXml(text) {
  return new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, 'application/xml');
}
