// Placeholders of a view: loading, failed, empty.

import {h} from './dom.js';
import {sentence} from './format.js';

export function loading() {
  return h('div', {class: 'state', role: 'status', 'data-state': 'loading'},
    h('div', {class: 'skeleton wide'}), h('div', {class: 'skeleton'}), h('div', {class: 'skeleton short'}),
    h('p', {class: 'quiet'}, 'Loading…'));
}

const SUBJECTS = {task: 'Task', batch: 'Batch', workflow: 'Workflow'};
const ADVICE = {
  unreachable: 'Is qo serve still running? The page keeps trying.',
  not_loaded: 'Is qo serve still running? “Try again” reloads the page.',
  store_unavailable: 'The server runs, but its store does not respond. The page keeps trying.',
  not_found: 'It may have been deleted.',
  forbidden: 'The scopes of this token do not allow this.',
};

// `view`: the name of the view that failed.
export function failure(error, retry, view) {
  return h('div', {class: 'state', role: 'alert', 'data-state': 'error'},
    h('h2', {}, error.code === 'not_found' ? `${SUBJECTS[view] ?? 'Page'} not found` : 'Request failed'),
    h('p', {}, sentence(error.message || String(error))),
    ADVICE[error.code] && h('p', {class: 'quiet'}, ADVICE[error.code]),
    h('p', {}, h('button', {class: 'button', type: 'button', on: {click: retry}}, 'Try again')));
}

export function empty(title, ...hints) {
  return h('div', {class: 'state empty', 'data-state': 'empty'},
    h('h2', {}, title), hints.map((hint) => h('p', {class: 'quiet'}, hint)));
}
