// JSON as a tree. Branches are built when they are opened, and long ones in parts.

import {h} from './dom.js';
import {LosslessInteger} from './lossless_json.js';
import {plural} from './format.js';
import {icon} from './icons.js';
import {complain, say} from './toast.js';

const PAGE_SIZE = 100; // children
const MAX_STRING = 400; // characters
const OPEN_LEVELS = 2;

export function jsonTree(value) {
  const holder = h('div', {class: 'tree', role: 'group'});
  const draw = (depth) => holder.replaceChildren(node(null, value, 0, depth));
  draw(OPEN_LEVELS);
  return h('div', {class: 'json'},
    h('div', {class: 'json-tools'},
      isBranch(value) && h('button', {type: 'button', class: 'link', on: {click: () => draw(8)}}, 'Expand'),
      isBranch(value) && h('button', {type: 'button', class: 'link', on: {click: () => draw(0)}}, 'Collapse'),
      h('button', {type: 'button', class: 'icon-button', 'aria-label': 'Copy as JSON', title: 'Copy as JSON', on: {click: () => copy(JSON.stringify(value, null, 2))}}, icon('copy'))),
    holder);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say('Copied.');
  } catch {
    complain(new Error('The browser does not allow this page to copy.'));
  }
}

const isBranch = (value) => value !== null && typeof value === 'object' && !(value instanceof LosslessInteger);

function node(key, value, depth, openTo) {
  const name = key === null ? null : [h('span', {class: 'key'}, key), h('span', {class: 'mark'}, ': ')];
  if (!isBranch(value)) return h('div', {class: 'leaf'}, name, leaf(value));
  const entries = Array.isArray(value) ? value.map((each, at) => [at, each]) : Object.entries(value);
  const [first, last] = Array.isArray(value) ? ['[', ']'] : ['{', '}'];
  if (!entries.length) return h('div', {class: 'leaf'}, name, h('span', {class: 'mark'}, first + last));
  const inside = h('div', {class: 'branch'});
  const fillIn = () => inside.childElementCount || more(inside, entries, 0, depth, openTo);
  const open = depth < openTo;
  const what = Array.isArray(value) ? plural(entries.length, 'item') : plural(entries.length, 'field');
  const details = h('details', {open, on: {toggle: () => details.open && fillIn()}},
    h('summary', {}, name, h('span', {class: 'mark'}, first), h('span', {class: 'quiet small'}, ` ${what} `), h('span', {class: 'mark'}, last)), inside);
  if (open) fillIn();
  return details;
}

function more(inside, entries, from, depth, openTo) {
  const some = entries.slice(from, from + PAGE_SIZE);
  inside.append(...some.map(([key, value]) => node(String(key), value, depth + 1, openTo)));
  const left = entries.length - from - some.length;
  if (left <= 0) return;
  const button = h('button', {type: 'button', class: 'link', on: {click: () => {
    button.remove();
    more(inside, entries, from + PAGE_SIZE, depth, openTo);
  }}}, `${plural(left, 'more', 'more')}…`);
  inside.append(button);
}

function leaf(value) {
  if (typeof value !== 'string') return h('span', {class: value === null ? 'null' : value instanceof LosslessInteger ? 'number' : typeof value}, String(value));
  const text = h('span', {class: 'string'}, JSON.stringify(value.length > MAX_STRING ? value.slice(0, MAX_STRING) : value));
  if (value.length <= MAX_STRING) return text;
  const button = h('button', {type: 'button', class: 'link', on: {click: () => {
    text.textContent = JSON.stringify(value);
    button.remove();
  }}}, `all ${plural(value.length, 'character')}`);
  return h('span', {}, text, ' … ', button);
}
