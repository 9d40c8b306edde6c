// The six statuses: their order, the allowed actions, their badges.

import {now} from './clock.js';
import {h} from './dom.js';
import {seconds} from './format.js';
import {icon} from './icons.js';

export const NO_HANDLER = 'no running worker handles this type';
export const STATUSES = ['pending', 'running', 'completed', 'failed', 'cancelled', 'archived'];

// Of workers, schedules, fire times and workflows.
const OTHERS = ['busy', 'idle', 'draining', 'stale', 'active', 'paused', 'inactive', 'ended', 'fired', 'skipped', 'missed', 'waiting', 'blocked', 'missing'];

export const ACTIONS = {
  replay: {label: 'Replay', key: 'r', takes: ['failed', 'cancelled', 'archived'], past: 'replayed', danger: false,
    what: 'Runs the task again now, with all its retries.'},
  replay_completed: {label: 'Replay', key: 'r', takes: ['completed'], past: 'replayed', danger: true, server: true, single: true, icon: 'replay',
    what: 'Runs the completed task again now. It loses its result.'},
  run_now: {label: 'Run now', key: 's', takes: ['pending'], past: 'made due', danger: false, server: true, icon: 'resume',
    what: 'Makes scheduled and retrying tasks due now.'},
  reschedule: {label: 'Reschedule', key: 't', takes: ['pending'], past: 'rescheduled', danger: false, server: true, icon: 'clock', asks: 'time',
    what: 'Changes when pending tasks become due. A time in the past means now.'},
  priority: {label: 'Priority', key: 'i', takes: ['pending'], past: 'moved to the new priority', danger: false, server: true, icon: 'gauge', asks: 'priority',
    what: 'Moves pending tasks to another priority, as if they had been submitted with it.'},
  cancel: {label: 'Cancel', key: 'c', takes: ['pending', 'running'], past: 'cancelled', danger: true,
    what: 'Ends the task. A worker that runs it loses its lease and stops.'},
  archive: {label: 'Archive', key: 'e', takes: ['completed', 'failed', 'cancelled'], past: 'archived', danger: false,
    what: 'Removes the task from the default list. Archived tasks can be shown and replayed.'},
  delete: {label: 'Delete', key: '#', takes: ['completed', 'failed', 'cancelled', 'archived'], past: 'deleted', danger: true,
    what: 'Deletes the task and its history. This cannot be undone.'},
};

// `available_at` of a task that waits for other tasks of its workflow.
const BLOCKED_AT = 6.4e12; // milliseconds; 2 * LONGEST of the model
export const isBlocked = (task) => task.status === 'pending' && Date.parse(task.available_at) === BLOCKED_AT;

// The kind of a pending task, as in the counts: what it waits for.
export function pendingKind(task) {
  if (isBlocked(task)) return 'blocked';
  if (seconds(task.available_at) <= now()) return 'ready';
  return task.failures ? 'retrying' : 'scheduled';
}

// A source without `can.delete` allows deletion. Some actions need a server.
const known = (can) => Object.keys(ACTIONS).filter((name) => (name !== 'delete' || can.delete !== false) && (!ACTIONS[name].server || can.operate));
export const actions = (can) => known(can).filter((name) => !ACTIONS[name].single);
export const allowed = (status, can) => known(can).filter((name) => ACTIONS[name].takes.includes(status));
// The actions for one task: one that is due cannot be made due, and a blocked one cannot be rescheduled.
export const allowedFor = (task, can) => allowed(task.status, can).filter((name) => (name !== 'run_now' || seconds(task.available_at) > now()) && (name !== 'reschedule' || !isBlocked(task)));

// The action of a shortcut for one task. Two actions share a key if they apply to different statuses.
export const actionOf = (key, task, can) => allowedFor(task, can).find((name) => ACTIONS[name].key === key);

export const taskBadge = (task) => (task.status === 'pending'
  ? [badge(task.status), ' ', h('small', {class: 'quiet', 'data-kind': pendingKind(task)}, pendingKind(task))]
  : [badge(task.status)]);

export function badge(status) {
  const known = STATUSES.includes(status) || OTHERS.includes(status);
  return h('span', {class: `badge ${known ? status : ''}`}, status);
}

export function actionButton(name, act, {small = false, of = ''} = {}) {
  const {label} = ACTIONS[name];
  return h('button', {type: 'button', class: small ? 'icon-button' : `button ${name === 'delete' ? 'danger-quiet' : ''}`,
    'data-action': name, title: label, 'aria-label': small ? `${label} ${of}`.trim() : null, on: {click: act}},
    icon(ACTIONS[name].icon ?? name), small ? null : label);
}
