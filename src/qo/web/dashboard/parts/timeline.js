// The history of a task: a list of attempts, and a bar with the time in each status.

import {h, svg} from './dom.js';
import {duration, firstLine, instant, seconds} from './format.js';
import {address} from './router.js';
import {badge} from './status.js';
import {ago, countdown, now} from './clock.js';

const MIN_WIDTH = 1.2; // percent, so that short times are visible

export function strip(history) {
  const spans = history.map((event, at) => ({status: event.status, long: Math.max(0, (history[at + 1] ? seconds(history[at + 1].at) : now()) - seconds(event.at))}));
  if (spans.length && !['pending', 'running'].includes(spans.at(-1).status)) spans.pop(); // the time after the end does not count
  const total = spans.reduce((sum, span) => sum + span.long, 0) || 1;
  const wide = spans.map((span) => Math.max(MIN_WIDTH, (100 * span.long) / total));
  const scale = 100 / wide.reduce((sum, each) => sum + each, 0);
  let x = 0;
  return svg('svg', {class: 'bar strip', viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img',
    'aria-label': spans.map((span) => `${span.status} for ${duration(span.long)}`).join(', ')},
    spans.map((span, at) => {
      const rect = svg('rect', {class: `fill ${span.status}`, x, y: 0, width: Math.max(0, wide[at] * scale - 0.25), height: 10}, svg('title', {}, `${span.status} for ${duration(span.long)}`));
      x += wide[at] * scale;
      return rect;
    }));
}

// An attempt starts with a claim and ends with the next transition.
export function attempts(history) {
  const made = [];
  history.forEach((event, at) => {
    if (event.status !== 'running') return;
    const next = history.slice(at + 1).find((each) => each.status !== 'running') ?? null;
    made.push({number: event.attempt, began: event, ended: next, retry: next?.status === 'pending' ? next : null});
  });
  return made;
}

export function timeline(history) {
  if (!history.length) return h('p', {class: 'quiet'}, 'No history is stored for this task.');
  const items = [line('pending', 'Submitted', history[0].at)];
  for (const {number, began, ended, retry} of attempts(history)) {
    const took = ended ? seconds(ended.at) - seconds(began.at) : null;
    items.push(h('li', {class: `moment ${ended ? outcome(ended) : 'running'}`},
      h('header', {}, h('b', {}, `Attempt ${number}`), badge(ended ? outcome(ended) : 'running'), h('span', {class: 'quiet'}, ago(began.at))),
      h('p', {class: 'quiet'}, began.worker_id ? ['by ', h('a', {href: address('tasks', {worker: began.worker_id})}, began.worker_id), ', '] : null, took === null ? ['running for ', ago(began.at, {bare: true})] : `took ${duration(took)}`),
      ended?.error && ended.status !== 'completed' ? h('p', {class: 'error-line'}, firstLine(ended.error, 240)) : null,
      ended?.log ? h('details', {class: 'log'}, h('summary', {}, 'Log'), h('pre', {}, ended.log)) : null,
      retry ? wait(retry) : null));
  }
  for (const event of history.slice(1)) {
    if (event.status === 'archived' || event.status === 'cancelled') items.push(line(event.status, event.status === 'archived' ? 'Archived' : 'Cancelled', event.at));
  }
  replays(history).forEach((event) => items.push(line('pending', 'Replayed', event.at)));
  items.sort((one, other) => moment(one) - moment(other));
  return h('ol', {class: 'timeline'}, items);
}

const outcome = (ended) => (ended.status === 'pending' ? (ended.error ? 'failed' : 'pending') : ended.status);
const moment = (item) => Number(item.querySelector('[data-at]').dataset.at);
const replays = (history) => history.filter((event, at) => at && event.status === 'pending' && ['failed', 'cancelled', 'archived', 'completed'].includes(history[at - 1].status));

function line(status, text, at) {
  return h('li', {class: `moment ${status}`}, h('header', {}, h('b', {}, text), h('span', {class: 'quiet', title: instant(at)}, ago(at))));
}

function wait(retry) {
  const left = seconds(retry.available_at) - seconds(retry.at);
  if (left <= 0) return h('p', {class: 'quiet'}, 'released, due immediately');
  return h('p', {class: 'quiet'}, `retry after ${duration(left)}`, seconds(retry.available_at) > now() ? [', due ', countdown(retry.available_at, 'now')] : null);
}
