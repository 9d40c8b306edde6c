// The six statuses: their order, the allowed actions, their badges.

import {h} from './dom.js';
import {icon} from './icons.js';

export const NO_HANDLER = 'no worker handles this type';
export const STATUSES = ['pending', 'running', 'completed', 'failed', 'cancelled', 'archived'];

export const ACTIONS = {
  replay: {label: 'Replay', key: 'r', takes: ['failed', 'cancelled', 'archived'], past: 'replayed', danger: false,
    what: 'Runs the task again now, with all its retries.'},
  cancel: {label: 'Cancel', key: 'c', takes: ['pending', 'running'], past: 'cancelled', danger: true,
    what: 'Ends the task. A worker that runs it loses its lease and stops.'},
  archive: {label: 'Archive', key: 'e', takes: ['completed', 'failed', 'cancelled'], past: 'archived', danger: false,
    what: 'Removes the task from the default list. Archived tasks can be shown and replayed.'},
  delete: {label: 'Delete', key: '#', takes: ['completed', 'failed', 'cancelled', 'archived'], past: 'deleted', danger: true,
    what: 'Deletes the task and its history. This cannot be undone.'},
};

// A source without `can.delete` allows deletion.
export const actions = (can) => Object.keys(ACTIONS).filter((name) => name !== 'delete' || can.delete !== false);
export const allowed = (status, can) => actions(can).filter((name) => ACTIONS[name].takes.includes(status));

export function badge(status) {
  const known = STATUSES.includes(status) || ['busy', 'idle', 'draining', 'stale'].includes(status);
  return h('span', {class: `badge ${known ? status : ''}`}, status);
}

export function actionButton(name, act, {small = false, of = ''} = {}) {
  const {label} = ACTIONS[name];
  return h('button', {type: 'button', class: small ? 'icon-button' : `button ${name === 'delete' ? 'danger-quiet' : ''}`,
    'data-action': name, title: label, 'aria-label': small ? `${label} ${of}`.trim() : null, on: {click: act}},
    icon(name), small ? null : label);
}
