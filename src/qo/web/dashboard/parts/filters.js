// The filters above the list. Every change goes into the URL.

import {h, show} from './dom.js';
import {short} from './format.js';
import {icon} from './icons.js';
import {STATUSES} from './status.js';

const TYPING_DELAY = 250; // milliseconds without a key press before the search starts
const SORTS = [['', 'Newest first'], ['updated', 'Last changed'], ['rank', 'Next to run'], ['available', 'Soonest due'], ['failures', 'Most failures'], ['attempts', 'Most attempts']];
const PRIORITIES = [['', 'Any priority'], ['0', '0 · high'], ...['1', '2', '3', '4', '5'].map((each) => [each, each]), ['6', '6 · medium'], ['7', '7'], ['8', '8'], ['9', '9 · low']];
export const FIELDS = ['type', 'queue', 'worker', 'batch', 'priority', 'text', 'shard', 'sort'];

// `change(values)` receives the changed fields; null removes one.
export function filterBar(source, change) {
  const chips = h('div', {class: 'chips', role: 'group', 'aria-label': 'Status'});
  const select = (name, label, options) => h('select', {'aria-label': label, 'data-field': name, on: {change: () => change({[name]: controls[name].value})}}, options.map(option));
  const typed = (name, label, more) => h('input', {type: 'search', 'aria-label': label, placeholder: label, 'data-field': name, spellcheck: 'false', autocomplete: 'off', ...more,
    on: {input: () => later(name), keydown: (event) => event.key === 'Enter' && now(name)}});
  const controls = {
    text: typed('text', 'Search', {maxlength: '200'}),
    type: select('type', 'Type', [['', 'Any type']]),
    queue: select('queue', 'Queue', [['', 'Any queue']]),
    priority: select('priority', 'Priority', PRIORITIES),
    worker: typed('worker', 'Worker', {maxlength: '64', list: 'workers-known'}),
    batch: typed('batch', 'Batch', {maxlength: '128'}),
    shard: select('shard', 'Shard', [['', 'All shards'], ...[...'0123456789abcdef'].map((digit) => [digit, `Shard ${digit}`])]),
    sort: select('sort', 'Order', SORTS),
  };
  controls.shard.hidden = true;
  const clear = h('button', {type: 'button', class: 'button small', on: {click: () => change(Object.fromEntries([...FIELDS, 'status'].map((name) => [name, null])))}}, 'Clear');
  const workers = h('datalist', {id: 'workers-known'});
  const search = h('label', {class: 'search'}, icon('search'), controls.text, h('kbd', {'aria-hidden': 'true'}, '/'));
  const element = h('div', {class: 'filters'}, chips, h('div', {class: 'fields'}, search, controls.type, controls.queue, controls.priority, controls.worker, workers, controls.batch, controls.shard, controls.sort, clear));
  let timer = null;

  function later(name) {
    clearTimeout(timer);
    timer = setTimeout(() => now(name), TYPING_DELAY);
  }

  function now(name) {
    clearTimeout(timer);
    change({[name]: controls[name].value.trim()});
  }

  return {
    element,
    focus: () => controls.text.focus(),
    // Shows the parameters of the URL. A field with the focus is not changed.
    set(params) {
      for (const name of FIELDS) {
        const value = params.get(name) ?? '';
        if (controls[name] === document.activeElement && controls[name].tagName === 'INPUT') continue;
        if (controls[name].tagName === 'SELECT' && ![...controls[name].options].some((each) => each.value === value)) controls[name].append(option([value, value]));
        controls[name].value = value;
      }
      clear.hidden = ![...FIELDS, 'status'].some((name) => params.has(name));
    },
    // Shows the counts by status, and the known types and queues.
    know(overview, params) {
      controls.shard.hidden = !source.can.shards;
      const chosen = params.getAll('status');
      const chip = (status, kind, count) => {
        const on = chosen.includes(kind);
        return h('button', {type: 'button', class: `chip ${status}`, 'aria-pressed': String(on), 'data-status': kind,
          on: {click: () => change({status: on ? chosen.filter((each) => each !== kind) : [...chosen, kind]})}},
          h('i'), kind, h('span', {class: 'count'}, short(count)));
      };
      const kinds = Object.entries(overview.pending ?? {}); // ready, scheduled, retrying
      show(chips, [overview.counts, kinds, chosen], () => STATUSES.flatMap((status) => [
        chip(status, status, overview.counts[status]), ...(status === 'pending' ? kinds.map(([kind, count]) => chip(status, kind, count)) : [])]));
      offer(controls.type, 'Any type', overview.types.map((each) => each.type));
      offer(controls.queue, 'Any queue', overview.queues.map((each) => each.queue));
    },
    knowWorkers: (ids) => show(workers, ids, () => ids.map((id) => h('option', {value: id}))),
  };
}

const option = ([value, label]) => h('option', {value}, label);

function offer(select, any, names) {
  const {value} = select;
  const sorted = [...new Set([...names, ...(value ? [value] : [])])].sort();
  show(select, sorted, () => [option(['', any]), ...sorted.map((name) => option([name, name]))]);
  select.value = value;
}
