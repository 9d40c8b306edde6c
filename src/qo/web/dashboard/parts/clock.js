// Ages and countdowns: one timer updates all of them, and stops while the page is hidden.

import {h} from './dom.js';
import {age, instant, seconds} from './format.js';

// "3 min ago" or "in 3 min"; the tooltip shows the exact time.
export function ago(iso, {bare = false} = {}) {
  if (!iso) return '';
  const element = h('time', {datetime: iso, title: instant(iso), 'data-at': seconds(iso), 'data-bare': bare});
  tick(element);
  return element;
}

// "in 3 min" until the instant, then `past`.
export function countdown(iso, past = 'now') {
  const element = h('time', {datetime: iso, title: instant(iso), 'data-until': seconds(iso), 'data-past': past, class: 'countdown'});
  tick(element);
  return element;
}

// A bar that empties between two instants.
export function fuse(from, until) {
  const element = h('span', {class: 'fuse', 'data-from': seconds(from), 'data-fuse': seconds(until)}, h('span'));
  tick(element);
  return element;
}

let clock = {now: () => Date.now() / 1000}; // of the browser, until `start`

// Seconds since 1970 by the clock of the store, in which all instants are given: the clock of the browser may be wrong.
export const now = () => clock.now();

function tick(element) {
  const {at, until, fuse: end, from, past, bare} = element.dataset;
  if (at !== undefined) {
    const passed = now() - at;
    set(element, bare !== undefined ? age(Math.abs(passed)) : passed >= -0.5 ? `${age(Math.max(0, passed))} ago` : `in ${age(-passed)}`);
  } else if (until !== undefined) {
    const left = until - now();
    set(element, left > 0 ? `in ${age(left)}` : past);
    element.classList.toggle('over', left <= 0);
  } else if (end !== undefined) {
    const share = Math.max(0, Math.min(1, (end - now()) / Math.max(0.001, end - from)));
    element.firstChild.style.transform = `scaleX(${share})`;
  }
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function start(storeClock) {
  clock = storeClock;
  setInterval(() => {
    if (document.hidden) return;
    for (const element of document.querySelectorAll('[data-at], [data-until], [data-fuse]')) tick(element);
  }, 1000);
}
