// Workers: their tasks, capabilities and counters, and a button to drain one.

import {h, keyed, show} from '../parts/dom.js';
import {meter} from '../parts/chart.js';
import {number, plural, short, shortId} from '../parts/format.js';
import {icon} from '../parts/icons.js';
import {address, go, taskAddress} from '../parts/router.js';
import {empty} from '../parts/states.js';
import {badge} from '../parts/status.js';
import {drain} from '../parts/controls.js';
import {ago} from '../parts/clock.js';

const STATES = ['busy', 'idle', 'draining', 'stale'];
const TASKS_SHOWN = 8;

export function open({source, to, refresh}) {
  document.title = 'Workers · qo';
  let {params} = to;
  const chips = h('div', {class: 'chips', role: 'group', 'aria-label': 'State'});
  const list = h('div', {class: 'workers'});
  const nothing = h('div');
  const summary = h('p', {class: 'summary', role: 'status'});
  const element = h('div', {}, h('div', {class: 'title'}, h('h1', {}, 'Workers'), summary), chips, list, nothing);
  return {
    element,
    update(moved) {
      params = moved.params;
      return true;
    },
    async refresh() {
      const workers = await source.workers();
      const wanted = params.getAll('show');
      const shown = workers.filter((worker) => !wanted.length || wanted.includes(worker.status));
      shown.sort((one, other) => STATES.indexOf(one.status) - STATES.indexOf(other.status) || one.id.localeCompare(other.id));
      const counts = Object.fromEntries(STATES.map((state) => [state, workers.filter((worker) => worker.status === state).length]));
      show(chips, [counts, wanted], () => STATES.map((state) => chip(state, counts[state], wanted)));
      keyed(list, shown, {key: (worker) => worker.id, stamp: (worker) => [worker, source.can.drain], build: card});
      show(nothing, [workers.length, shown.length], ([known, some]) => (some ? null : known
        ? empty('No workers in this state', 'Choose another state above.')
        : empty('No workers connected', 'Start one: qo worker MODULE:APP', 'Tasks stay pending until a worker connects.')));
      const connected = workers.filter((worker) => worker.status !== 'stale');
      const load = connected.reduce((sum, worker) => sum + worker.load, 0);
      const capacity = connected.reduce((sum, worker) => sum + worker.capacity, 0);
      summary.textContent = workers.length ? `${plural(connected.length, 'worker')} connected, ${number(load)} of ${number(capacity)} slots used` : '';
    },
  };

  function chip(state, count, wanted) {
    const on = wanted.includes(state);
    return h('button', {type: 'button', class: `chip ${state}`, 'aria-pressed': String(on), 'data-state': state,
      on: {click: () => go(address('workers', {show: on ? wanted.filter((each) => each !== state) : [...wanted, state]}))}},
      h('i'), state, h('span', {class: 'count'}, number(count)));
  }

  function card(worker) {
    const {completed = 0, failed = 0} = worker.counters;
    return h('article', {class: `card worker ${worker.status}`, 'data-worker': worker.id},
      h('header', {}, h('h2', {}, h('a', {href: address('tasks', {worker: worker.id})}, worker.id)), badge(worker.status),
        source.can.drain && ['busy', 'idle'].includes(worker.status)
          ? h('button', {type: 'button', class: 'button small', 'data-do': 'drain', on: {click: () => drain(source, worker.id).then((done) => done && refresh())}}, icon('drain'), 'Drain') : null),
      h('div', {class: 'load'}, meter(worker.load / Math.max(1, worker.capacity), `${worker.load} of ${worker.capacity} slots used`), h('span', {}, `${number(worker.load)} / ${number(worker.capacity)}`)),
      h('dl', {class: 'facts'},
        fact('Heartbeat', ago(worker.heartbeat_at)), fact('Started', ago(worker.started_at)),
        worker.waiting ? fact('Claimed, not started', number(worker.waiting)) : null,
        fact('Completed', short(completed)), fact('Failed', h('span', {class: failed ? 'bad' : ''}, short(failed))),
        fact('Host', worker.host || '–'), fact('Version', worker.version || '–'),
        fact('Queues', names(worker.queues)), fact('Types', names(worker.types)), fact('Capabilities', names(worker.capabilities, 'none'))),
      worker.current.length ? h('div', {class: 'current-tasks'}, h('h3', {}, 'Running'),
        h('ul', {}, worker.current.slice(0, TASKS_SHOWN).map((id) => h('li', {}, h('a', {href: taskAddress(id)}, h('code', {}, shortId(id)))))),
        worker.current.length > TASKS_SHOWN ? h('a', {href: address('tasks', {worker: worker.id, status: 'running'})}, `and ${worker.current.length - TASKS_SHOWN} more`) : null) : null);
  }
}

const fact = (name, value) => h('div', {}, h('dt', {}, name), h('dd', {}, value));
const names = (list, empty = 'all') => (list.length ? list.map((name) => h('span', {class: 'tag'}, name)) : empty);
