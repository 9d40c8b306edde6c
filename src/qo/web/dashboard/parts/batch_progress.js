// The progress of a batch: a bar by status, and a sentence.

import {h} from './dom.js';
import {stacked} from './chart.js';
import {duration, number, plural} from './format.js';

const FINISHED = ['completed', 'archived', 'failed', 'cancelled'];

export function batchProgress(batch) {
  const parts = [...FINISHED, 'running'].map((kind) => ({kind, value: batch[kind]}));
  return h('div', {class: 'progress'}, stacked(parts, batch.total), h('span', {'data-share': true}, `${Math.floor(batch.fraction * 100)} %`));
}

export function batchSummary({done, total, failed, running, eta}) {
  const parts = [`${number(done)} of ${plural(total, 'task')} done`];
  if (failed) parts.push(`${number(failed)} failed`);
  if (running) parts.push(`${number(running)} running`);
  if (eta !== null && eta !== undefined) parts.push(`about ${duration(Math.max(1, Math.round(eta)))} left`);
  return parts.join(', ');
}
