// Creates all elements. Content of tasks is only ever added as text: this module has no way to write markup.

const SVG = 'http://www.w3.org/2000/svg';

// h('a', {href: '#/tasks', class: 'quiet', on: {click: open}}, 'Tasks')
export function h(tag, attributes, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (PROPERTIES.has(name)) {
      element[name] = value;
    } else {
      refuseCode(name, value);
      element.setAttribute(name, value === true ? '' : String(value));
    }
  }
  add(element, children);
  return element;
}

const PROPERTIES = new Set(['value', 'checked', 'disabled', 'indeterminate', 'selected', 'hidden', 'htmlFor']);

// Attributes can contain code. Links stay inside the page.
function refuseCode(name, value) {
  const lower = name.toLowerCase();
  if (lower.startsWith('on') || lower === 'style' || lower === 'srcdoc' || lower === 'src') {
    throw new TypeError(`the attribute ${name} is not allowed`);
  }
  if ((lower === 'href' || lower === 'xlink:href') && !String(value).startsWith('#')) {
    throw new TypeError('a link must stay inside the page');
  }
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(visible(String(child)));
  }
}

// Direction overrides as escapes, as on the command line: they can make one text look like another.
const visible = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (found) => `\\u${found.charCodeAt(0).toString(16)}`);

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

// Rebuilds the content of an element only if its data changed, so that focus, selection and scrolling are kept.
export function show(element, data, build) {
  const stamp = JSON.stringify(data);
  if (stamps.get(element) === stamp) return;
  stamps.set(element, stamp);
  const before = document.activeElement;
  const way = before !== element && element.contains(before) ? path(element, before) : null;
  fill(element, build(data));
  if (way) (likeness(element, before) ?? samePlace(element, before, way))?.focus({preventScroll: true});
}

// The control that replaced `before` in a rebuilt element: it has the same name, in a row with the same name.
export function likeness(element, before) {
  const name = nameOf(before);
  return [...element.querySelectorAll(before.tagName)].find((each) => nameOf(each) === name && rowOf(each) === rowOf(before));
}

// A button whose name changed, such as Pause and Resume.
function samePlace(element, before, way) {
  const found = way.reduce((node, at) => node?.children[at], element);
  return found?.tagName === before.tagName && rowOf(found) === rowOf(before) ? found : null;
}

const nameOf = (control) => control.getAttribute('href') ?? control.getAttribute('aria-label') ?? control.textContent;
const rowOf = (control) => control.closest('tr, li, article')?.querySelector('th, a')?.textContent;

const stamps = new WeakMap();

// The same for a list: rows whose data did not change keep their element.
export function keyed(container, items, {key, stamp, build}) {
  const known = new Map([...container.children].map((element) => [element.dataset.key, element]));
  const wanted = items.map((item) => {
    const id = key(item);
    const now = JSON.stringify(stamp(item));
    const before = known.get(id);
    if (before && stamps.get(before) === now) return before;
    const element = build(item);
    element.dataset.key = id;
    stamps.set(element, now);
    if (before && before.contains(document.activeElement)) refocus.set(element, path(before, document.activeElement));
    return element;
  });
  if (wanted.length !== container.children.length || wanted.some((each, at) => container.children[at] !== each)) {
    container.replaceChildren(...wanted);
  }
  for (const element of wanted) {
    const way = refocus.get(element);
    if (way === undefined) continue;
    refocus.delete(element);
    way.reduce((node, at) => node?.children[at], element)?.focus();
  }
}

const refocus = new Map();

// The position of an element in another one: the same position in a rebuilt row gets the focus.
function path(from, to) {
  const way = [];
  for (let node = to; node !== from; node = node.parentElement) way.unshift([...node.parentElement.children].indexOf(node));
  return way;
}
