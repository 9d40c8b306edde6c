// The six statuses: their order, what may be done in each, how they look.

import {h} from './dom.js';
import {icon} from './icons.js';

export const NO_HANDLER = 'no worker handles this type';
export const STATUSES = ['pending', 'running', 'completed', 'failed', 'cancelled', 'archived'];

export const ACTIONS = {
  replay: {label: 'Replay', key: 'r', takes: ['failed', 'cancelled', 'archived'], past: 'replayed', danger: false,
    what: 'Back to the start: due at once, with all its retries.'},
  cancel: {label: 'Cancel', key: 'c', takes: ['pending', 'running'], past: 'cancelled', danger: true,
    what: 'It ends here. A worker running it finds its lease gone and stops.'},
  archive: {label: 'Archive', key: 'e', takes: ['completed', 'failed', 'cancelled'], past: 'archived', danger: false,
    what: 'Out of the normal listing; it can be found under archived, and replayed.'},
  delete: {label: 'Delete', key: '#', takes: ['completed', 'failed', 'cancelled', 'archived'], past: 'deleted', danger: true,
    what: 'The task and its history are forgotten. This cannot be undone.'},
};

// A source that does not say otherwise may delete what it may change.
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
