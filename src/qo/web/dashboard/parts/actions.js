// Actions on tasks: confirm those that cannot be undone, and report the outcome.

import {h} from './dom.js';
import {dialog} from './dialog.js';
import {plural} from './format.js';
import {ACTIONS} from './status.js';
import {complain, say} from './toast.js';

// `target` is {ids} or {filter}; `count` is the number of tasks, null if unknown. Resolves to true if a task changed.
export async function act(source, action, target, count) {
  const kind = ACTIONS[action];
  if ((kind.danger || target.filter) && !(await sure(kind, target, count))) return false;
  try {
    const {done, refused} = await source.act(action, target);
    report(kind, done, refused);
    return done > 0;
  } catch (error) {
    complain(error);
    return false;
  }
}

function sure(kind, target, count) {
  const what = target.ids ? plural(target.ids.length, 'task') : count === null || count === undefined ? 'all matching tasks' : `all ${plural(count, 'matching task')}`;
  const takes = target.filter ? `Applies to tasks that are ${kind.takes.join(', ')}.` : null;
  return dialog({
    title: `${kind.label} ${what}?`,
    body: [h('p', {}, kind.what), takes && h('p', {class: 'quiet'}, takes)],
    confirm: {label: kind.label, danger: kind.danger},
  });
}

function report(kind, done, refused) {
  if (done || !refused.length) say(`${plural(done, 'task')} ${kind.past}.`, done ? 'good' : 'plain');
  if (refused.length) {
    const [{why}] = refused;
    say(refused.length === 1 ? `Not ${kind.past}: ${why}.` : `${plural(refused.length, 'task')} not ${kind.past}; the first: ${why}.`, 'bad');
  }
}
