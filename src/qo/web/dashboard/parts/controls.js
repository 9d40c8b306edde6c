// Controls: pause and resume, rate limits, clean-up, drain. Each confirms, acts and reports.

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

// A pause affects all types of a queue, or a type in all queues, so the limits of the token must cover them.
export function mayControl({can, limits: {queues, types} = {queues: [], types: []}}, {queue, type} = {}) {
  if (!can.controls) return false;
  if (queue !== undefined) return !types.length && (!queues.length || queues.includes(queue));
  if (type !== undefined) return !queues.length && (!types.length || types.includes(type));
  return !queues.length && !types.length;
}

export function pause(source, which = {}) {
  return control(source, 'pause', which, `${named(which)} paused. Running tasks continue; workers react within two seconds.`);
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
    body: [field('Type', select), field('Tasks started per second and worker', rate, '0 means no limit.')],
    confirm: {label: 'Set', value: () => ({type: select.value || undefined, limit: Number(rate.value)})},
  });
  if (!given) return false;
  const which = given.type ? ` of ${given.type}` : '';
  return control(source, 'rate-limit', given, given.limit ? `Each worker starts at most ${given.limit} tasks${which} per second.` : `Rate limit${which} removed.`);
}

/** A limit across all workers. `known`: the numbers of limits by scope; `preset`: {kind, name, numbers?}. An error keeps the
 *  dialog open. */
export async function limitFleet(source, {known, preset = {kind: 'type', name: ''}}) {
  const kinds = [['type', 'a type'], ['queue', 'a queue'], ['key', 'one value of an argument']];
  const kind = h('select', {}, kinds.map(([value, label]) => h('option', {value, selected: value === preset.kind}, label)));
  const name = h('input', {type: 'text', required: true, autocomplete: 'off', placeholder: 'send_email, or customer_id=42', value: preset.name});
  const input = (value, step, min, max) => h('input', {type: 'number', min, max, step, value: String(value), required: true, inputmode: 'decimal'});
  const [concurrency, rate, per] = [input(0, '1', '0', '10000'), input(0, '1', '0', '1000000'), input(1, 'any', '0.000001', '3200000000')];
  const renew = () => {
    const numbers = known[`${kind.value}:${name.value}`] ?? (name.value === preset.name ? preset.numbers : undefined);
    if (numbers) [concurrency.value, rate.value, per.value] = [numbers.concurrency, numbers.rate, numbers.per].map(String);
  };
  for (const changed of [kind, name]) changed.addEventListener('input', renew);
  renew();
  const given = await dialog({
    title: 'Limit across all workers',
    body: [
      field('For', kind), field('Name', name),
      field('Maximum running tasks', concurrency, '0 means no limit.'), field('Maximum starts per period', rate, '0 means no limit.'), field('Period in seconds', per),
      h('p', {}, 'Set both limits to 0 to restore the limit in the code.'),
    ],
    confirm: {label: 'Set', value: async () => {
      const numbers = {concurrency: Number(concurrency.value), rate: Number(rate.value), per: Number(per.value)};
      const options = {[kind.value]: name.value.trim(), ...numbers, remove: !numbers.concurrency && !numbers.rate};
      await source.control('fleet-limit', options);
      return options;
    }},
  });
  if (!given) return false;
  say(given.remove ? `The limit of ${name.value} in the code applies again.` : `${name.value}: ${fleetNumbers(given)} across all workers.`);
  return true;
}

export async function removeFleetLimit(source, {kind, name}) {
  const sure = await dialog({
    title: `Remove the limit of ${kind === 'key' ? '' : `${kind} `}${name}?`,
    body: [h('p', {}, 'If the code has a limit, it applies again. Workers react within two seconds.')],
    confirm: {label: 'Remove', danger: true},
  });
  return sure ? control(source, 'fleet-limit', {[kind]: name, concurrency: 0, rate: 0, per: 1, remove: true}, `The limit of ${name} was removed.`) : false;
}

export function fleetNumbers({concurrency, rate, per}) {
  const parts = [concurrency && `${number(concurrency)} at a time`, rate && `${plural(rate, 'start')} in ${per} s`].filter(Boolean);
  return parts.length ? `at most ${parts.join(' and ')}` : 'no limit';
}

/** `queues`: the queues of the overview. An invalid limit is reported in the dialog, which stays open. */
export async function limitTypes(source, {queues, limit}) {
  const most = Math.max(0, ...queues.map((line) => line.live_types));
  const input = h('input', {type: 'text', inputmode: 'numeric', value: String(limit), autocomplete: 'off'});
  const given = await dialog({
    title: 'Type limit',
    body: [
      h('p', {}, `Current limit: ${limit ? plural(limit, 'type') : 'none'}. The largest queue has unfinished tasks of ${plural(most, 'type')}.`),
      field('Types with unfinished tasks per queue', input, `0 means no limit. The default is ${number(DEFAULT_TYPE_LIMIT)}. Producers apply it within a minute.`),
    ],
    confirm: {label: 'Set', value: async () => {
      const wanted = typeLimitOf(input.value);
      await source.control('max-types', {max_types: wanted});
      return {limit: wanted};
    }},
  });
  if (!given) return false;
  say(given.limit ? `A queue accepts unfinished tasks of at most ${plural(given.limit, 'type')}.` : 'Type limit removed.');
  return true;
}

const AGES = [['3600', 'more than an hour ago'], ['86400', 'more than a day ago'], ['604800', 'more than a week ago'], ['2592000', 'more than 30 days ago'], ['0', 'at any time']];

export async function cleanUp(source) {
  const age = h('select', {}, AGES.map(([value, label]) => h('option', {value, selected: value === '604800'}, label)));
  const boxes = ['completed', 'failed', 'cancelled', 'archived'].map((status) => h('input', {type: 'checkbox', value: status, checked: status === 'completed'}));
  const given = await dialog({
    title: 'Clean up',
    body: [
      h('p', {}, 'Deletes finished tasks and their history. This cannot be undone.'),
      field('Ended', age),
      h('fieldset', {}, h('legend', {}, 'Status'), boxes.map((box) => h('label', {class: 'check'}, box, box.value))),
    ],
    confirm: {label: 'Delete', danger: true,
      value: () => ({older_than: Number(age.value), status: boxes.filter((box) => box.checked).map((box) => box.value)})},
  });
  if (!given) return false;
  if (!given.status.length) {
    say('No status selected, so nothing was deleted.', 'plain');
    return false;
  }
  return control(source, 'cleanup', given, (answer) => `${plural(answer.deleted, 'task')} deleted.`);
}

export async function drain(source, worker) {
  const sure = await dialog({
    title: `Drain ${worker}?`,
    body: [h('p', {}, 'The worker claims no more tasks, finishes its running tasks, releases those that exceed the grace period, and exits.')],
    confirm: {label: 'Drain', danger: true},
  });
  return sure ? control(source, 'drain', {worker}, `${worker} is draining.`) : false;
}
