// Actions on tasks: confirm those that cannot be undone, and report the outcome.

import {now} from './clock.js';
import {h} from './dom.js';
import {dialog, field} from './dialog.js';
import {plural} from './format.js';
import {ACTIONS} from './status.js';
import {complain, say} from './toast.js';

// `target` is {ids} or {filter}; `count` is the number of tasks, null if unknown. Resolves to true if a task changed.
export async function act(source, action, target, count) {
  const kind = ACTIONS[action];
  const values = kind.asks ? await ask(kind, target, count) : {};
  if (values === null || ((kind.danger || (target.filter && !kind.asks)) && !(await sure(kind, target, count)))) return false;
  try {
    const {done, refused} = await source.act(action, {...target, values});
    report(kind, done, refused);
    return done > 0;
  } catch (error) {
    complain(error);
    return false;
  }
}

const amount = (target, count) => (target.ids ? plural(target.ids.length, 'task') : count === null || count === undefined ? 'all matching tasks' : `all ${plural(count, 'matching task')}`);

// Asks for the new time or priority. Resolves to the values of the request, or to null.
function ask(kind, target, count) {
  const asksTime = kind.asks === 'time';
  const soon = new Date((now() + 3600) * 1000 - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
  const control = asksTime ? h('input', {type: 'datetime-local', value: soon, required: true, 'data-field': 'run_at'})
    : h('select', {'data-field': 'priority'}, Array.from({length: 10}, (_, level) => h('option', {value: String(level)}, `${level}${{0: ' · high', 6: ' · medium', 9: ' · low'}[level] ?? ''}`)));
  return dialog({
    title: `${kind.label}: ${amount(target, count)}`,
    body: [h('p', {}, kind.what), asksTime ? field('Run at', control, 'In the time zone of this browser.') : field('Priority', control, 'Lower goes first.')],
    confirm: {label: kind.label, value: () => (asksTime ? {run_at: new Date(control.value).toISOString()} : {priority: Number(control.value)})},
  });
}

function sure(kind, target, count) {
  const what = amount(target, count);
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
