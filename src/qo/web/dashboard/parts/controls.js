// Switches: pause and resume, rate limits, clean-up, drain. Each asks, does, says.

import {h} from './dom.js';
import {dialog, field} from './dialog.js';
import {number, plural} from './format.js';
import {complain, say} from './toast.js';
import {DEFAULT_TYPE_LIMIT, typeLimitOf} from './type_limit.js';

async function control(source, action, options, done) {
  try {
    const answer = await source.control(action, options);
    say(typeof done === 'function' ? done(answer) : done);
    return true;
  } catch (error) {
    complain(error);
    return false;
  }
}

// A queue is paused with all its types and a type in all queues, so the token must be for all of them.
export function mayControl({can, limits: {queues, types} = {queues: [], types: []}}, {queue, type} = {}) {
  if (!can.controls) return false;
  if (queue !== undefined) return !types.length && (!queues.length || queues.includes(queue));
  if (type !== undefined) return !queues.length && (!types.length || types.includes(type));
  return !queues.length && !types.length;
}

export function pause(source, which = {}) {
  return control(source, 'pause', which, `${named(which)} paused. What runs goes on; workers notice within two seconds.`);
}

export function resume(source, which = {}) {
  return control(source, 'resume', which, `${named(which)} resumed.`);
}

const named = ({queue, type}) => (queue ? `Queue ${queue}` : type ? `Type ${type}` : 'Everything');

export async function limitRate(source, {types, limit, limits, type = ''}) {
  const select = h('select', {}, h('option', {value: ''}, 'all types together'), types.map((each) => h('option', {value: each, selected: each === type}, each)));
  const known = () => (select.value ? limits[select.value] ?? 0 : limit);
  const rate = h('input', {type: 'number', min: '0', step: 'any', required: true, inputmode: 'decimal'});
  const renew = () => { rate.value = String(known()); };
  select.addEventListener('change', renew);
  renew();
  const given = await dialog({
    title: 'Rate limit',
    body: [field('Tasks of', select), field('Started a second, by each worker', rate, '0 is no limit.')],
    confirm: {label: 'Set', value: () => ({type: select.value || undefined, limit: Number(rate.value)})},
  });
  if (!given) return false;
  const who = given.type ? `of ${given.type} ` : '';
  return control(source, 'rate-limit', given, given.limit ? `Each worker starts at most ${given.limit} tasks ${who}a second.` : `No rate limit ${who}any more.`);
}

/** `queues`: the lines of the overview. A limit that is refused is told in the dialog, which stays open. */
export async function limitTypes(source, {queues, limit}) {
  const most = Math.max(0, ...queues.map((line) => line.live_types));
  const input = h('input', {type: 'text', inputmode: 'numeric', value: String(limit), autocomplete: 'off'});
  const given = await dialog({
    title: 'Type limit',
    body: [
      h('p', {}, `Now: ${limit ? `at most ${plural(limit, 'type')}` : 'no limit'}. The queue with the most has unfinished tasks of ${plural(most, 'type')}.`),
      field('Types of unfinished tasks in a queue', input, `0 is no limit. Unless set it is ${number(DEFAULT_TYPE_LIMIT)}. Producers heed it within a minute.`),
    ],
    confirm: {label: 'Set', value: async () => {
      const wanted = typeLimitOf(input.value);
      await source.control('max-types', {max_types: wanted});
      return {limit: wanted};
    }},
  });
  if (!given) return false;
  say(given.limit ? `A queue takes unfinished tasks of at most ${plural(given.limit, 'type')}.` : 'No limit on types any more.');
  return true;
}

const AGES = [['3600', 'an hour ago'], ['86400', 'a day ago'], ['604800', 'a week ago'], ['2592000', '30 days ago'], ['0', 'at any time']];

export async function cleanUp(source) {
  const age = h('select', {}, AGES.map(([value, label]) => h('option', {value, selected: value === '604800'}, label)));
  const boxes = ['completed', 'failed', 'cancelled', 'archived'].map((status) => h('input', {type: 'checkbox', value: status, checked: status === 'completed'}));
  const given = await dialog({
    title: 'Clean up',
    body: [
      h('p', {}, 'Deletes finished tasks and their history. This cannot be undone.'),
      field('That ended before', age),
      h('fieldset', {}, h('legend', {}, 'And are'), boxes.map((box) => h('label', {class: 'check'}, box, box.value))),
    ],
    confirm: {label: 'Delete them', danger: true,
      value: () => ({older_than: Number(age.value), status: boxes.filter((box) => box.checked).map((box) => box.value)})},
  });
  if (!given) return false;
  if (!given.status.length) {
    say('Nothing chosen, nothing deleted.', 'plain');
    return false;
  }
  return control(source, 'cleanup', given, (answer) => `${plural(answer.deleted, 'task')} deleted.`);
}

export async function drain(source, worker) {
  const sure = await dialog({
    title: `Drain ${worker}?`,
    body: [h('p', {}, 'It takes no more tasks, finishes those it runs, hands back what does not end in its grace period, and exits.')],
    confirm: {label: 'Drain', danger: true},
  });
  return sure ? control(source, 'drain', {worker}, `${worker} was asked to drain.`) : false;
}
