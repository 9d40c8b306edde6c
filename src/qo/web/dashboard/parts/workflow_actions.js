// Actions on workflows: confirm them, and report the outcome.

import {h} from './dom.js';
import {dialog} from './dialog.js';
import {plural} from './format.js';
import {icon} from './icons.js';
import {complain, say} from './toast.js';

export const WORKFLOW_ACTIONS = {
  cancel: {label: 'Cancel workflow', icon: 'cancel', past: 'cancelled', danger: true,
    what: 'Cancels all unfinished tasks. Workers that run them lose their leases and stop.'},
  replay: {label: 'Replay', icon: 'replay', past: 'replayed', danger: false,
    what: 'Reruns all tasks that failed or were cancelled. Completed tasks keep their results.'},
  replay_from: {label: 'Replay from here', icon: 'replay', past: 'replayed', danger: true,
    what: 'Reruns this task and everything that depends on it. Completed tasks among them lose their results.'},
};

// `start` is {id, type} of a task, for replay_from. Resolves to true if tasks changed.
export async function changeWorkflow(source, id, action, start) {
  const kind = WORKFLOW_ACTIONS[action];
  const title = start ? `${kind.label}: ${start.type}?` : `${kind.label}?`;
  const isSure = await dialog({title, body: [h('p', {}, kind.what), h('p', {class: 'quiet'}, id)], confirm: {label: kind.label, danger: kind.danger}});
  if (!isSure) return false;
  try {
    const {tasks} = action === 'cancel' ? await source.cancelWorkflow(id) : await source.replayWorkflow(id, start ? [start.id] : []);
    say(`${plural(tasks, 'task')} ${kind.past}.`, 'good');
    return true;
  } catch (error) {
    complain(error);
    return false;
  }
}

export function workflowButton(action, perform, {small = false, of = ''} = {}) {
  const kind = WORKFLOW_ACTIONS[action];
  return h('button', {type: 'button', class: small ? 'icon-button' : 'button', 'data-workflow-action': action, title: kind.label,
    'aria-label': small ? `${kind.label}: ${of}` : null, on: {click: perform}}, icon(kind.icon), small ? null : kind.label);
}
