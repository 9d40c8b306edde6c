// Short messages about the outcome of an action, also for screen readers.

import {h} from './dom.js';
import {sentence} from './format.js';

const DURATION = 6000; // milliseconds

const container = h('div', {class: 'toasts', role: 'status', 'aria-live': 'polite'});

export const toasts = () => container;

export function say(message, kind = 'good') {
  const toast = h('p', {class: `toast ${kind}`}, message);
  container.append(toast);
  setTimeout(() => toast.remove(), DURATION);
}

export const complain = (error) => say(sentence(error.message || String(error)), 'bad');
