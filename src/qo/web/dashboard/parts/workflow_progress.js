// The progress of a workflow: a bar by state, and a sentence.

import {h} from './dom.js';
import {stacked} from './chart.js';
import {number, plural} from './format.js';

const ENDED = ['completed', 'failed', 'cancelled', 'missing'];

export function workflowProgress({counts, total}) {
  const parts = [...ENDED, 'running'].map((kind) => ({kind, value: counts[kind] ?? 0}));
  const share = total ? (counts.completed ?? 0) / total : 0;
  return h('div', {class: 'progress'}, stacked(parts, total), h('span', {'data-share': true}, `${Math.floor(share * 100)} %`));
}

export function workflowSummary({counts, total}) {
  const parts = [`${number(counts.completed ?? 0)} of ${plural(total, 'task')} completed`];
  for (const [state, word] of [['running', 'running'], ['pending', 'pending'], ['blocked', 'waiting for others'], ['failed', 'failed'], ['cancelled', 'cancelled'], ['missing', 'missing']]) {
    if (counts[state]) parts.push(`${number(counts[state])} ${word}`);
  }
  return parts.join(', ');
}
