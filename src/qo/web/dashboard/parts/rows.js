// A task as a table row.

import {h} from './dom.js';
import {firstLine, level, seconds, shortId} from './format.js';
import {address, taskAddress} from './router.js';
import {NO_HANDLER, actionButton, allowedFor, isBlocked, taskBadge} from './status.js';
import {ago, countdown, now} from './clock.js';

export const COLUMNS = ['', 'Status', 'Task', 'Queue', 'Priority', 'Attempts', 'When', 'Worker', ''];

export function taskRow(task, {selected, current, can, toggle, act}) {
  const box = h('input', {type: 'checkbox', checked: selected, 'aria-label': `Select ${task.type} ${task.id}`, on: {change: () => toggle(task.id, box.checked)}});
  return h('tr', {class: `${selected ? 'selected' : ''} ${current ? 'current' : ''}`, 'data-id': task.id, 'aria-current': current ? 'true' : null},
    h('td', {class: 'pick'}, can.write ? box : null),
    h('td', {'data-label': 'Status'}, ...taskBadge(task)),
    h('th', {scope: 'row', class: 'name'},
      h('a', {href: taskAddress(task.id)}, task.type),
      h('code', {class: 'id', title: task.id}, shortId(task.id)),
      task.error && task.status !== 'completed' ? h('p', {class: 'error-line'}, firstLine(task.error, 140)) : null),
    h('td', {'data-label': 'Queue'}, h('a', {class: 'quiet', href: address('tasks', {queue: task.queue})}, task.queue)),
    h('td', {'data-label': 'Priority'}, level(task.priority)),
    h('td', {'data-label': 'Attempts', class: 'number'}, attempts(task)),
    h('td', {'data-label': 'When'}, when(task)),
    h('td', {'data-label': 'Worker', class: 'worker'}, task.worker_id ? h('a', {class: 'quiet', href: address('tasks', {worker: task.worker_id}), title: task.worker_id}, task.worker_id) : ''),
    h('td', {class: 'row-tools'}, can.write ? allowedFor(task, can).map((name) => actionButton(name, () => act(name, task), {small: true, of: task.type})) : null));
}

function attempts(task) {
  const text = `${task.attempt}`;
  if (!task.failures) return text;
  return [text, h('span', {class: 'bad small', title: `${task.failures} of ${task.max_retries + 1} allowed failures`}, ` · ${task.failures}/${task.max_retries + 1} failed`)];
}

// The time of the next or last change, with the reason for waiting.
export function when(task) {
  if (task.status === 'pending') {
    if (isBlocked(task)) return 'waiting for other tasks';
    if (seconds(task.available_at) > now()) return [task.failures ? 'retry ' : 'due ', countdown(task.available_at, 'now')];
    const due = task.available_at > task.created_at ? task.available_at : task.created_at; // ISO 8601 sorts as text
    return ['waiting for ', ago(due, {bare: true}), task.unhandled ? [' · ', h('span', {class: 'unhandled'}, NO_HANDLER)] : null];
  }
  if (task.status === 'running') return task.started_at ? ['running for ', ago(task.started_at, {bare: true})] : 'claimed, not started';
  return ago(task.completed_at ?? task.updated_at);
}
