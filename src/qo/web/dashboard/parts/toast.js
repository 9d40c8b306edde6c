// What came of a click, said once, also to screen readers.

import {h} from './dom.js';

const STAYS = 6000; // milliseconds

const shelf = h('div', {class: 'toasts', role: 'status', 'aria-live': 'polite'});

export const toasts = () => shelf;

export function say(message, kind = 'good') {
  const toast = h('p', {class: `toast ${kind}`}, message);
  shelf.append(toast);
  setTimeout(() => toast.remove(), STAYS);
}

export const complain = (error) => say(error.message || String(error), 'bad');
