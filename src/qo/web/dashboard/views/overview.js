// The overview, with the controls.

import {h, show} from '../parts/dom.js';
import {sparkline, stacked, throughput} from '../parts/chart.js';
import {age, firstLine, number, plural, short} from '../parts/format.js';
import {icon} from '../parts/icons.js';
import {address, taskAddress} from '../parts/router.js';
import {empty} from '../parts/states.js';
import {NO_HANDLER, STATUSES} from '../parts/status.js';
import {cleanUp, fleetNumbers, limitFleet, limitRate, limitTypes, mayControl, pause, resume} from '../parts/controls.js';
import {ago} from '../parts/clock.js';

const RATE_PERIOD = 5; // minutes

export function open({source, refresh}) {
  document.title = 'Overview · qo';
  const part = (className) => h('div', {class: className});
  const [tools, notice, cards, chart, queues, aside, types, failures] = ['', '', 'cards', '', '', '', '', ''].map(part);
  const grid = h('div', {class: 'overview'},
    notice, cards,
    h('section', {class: 'card span'}, h('header', {}, h('h2', {}, 'Throughput'), h('div', {class: 'legend'}, key('completed'), key('failed'))), chart),
    h('section', {class: 'card'}, h('header', {}, h('h2', {}, 'Queues')), queues),
    h('section', {class: 'card'}, h('header', {}, h('h2', {}, 'Workers and priorities')), aside),
    h('section', {class: 'card'}, h('header', {}, h('h2', {}, 'Types'), h('div', {class: 'legend'}, STATUSES.map(key))), types),
    h('section', {class: 'card'}, h('header', {}, h('h2', {}, 'Latest failures'), h('a', {href: address('tasks', {status: 'failed'})}, 'Show all')), failures));
  const element = h('div', {}, h('div', {class: 'title'}, h('h1', {}, 'Overview'), tools), grid);
  let seen = null;
  const then = (doing) => doing.then((done) => done && refresh());

  return {
    element,
    async refresh() {
      seen = await source.overview();
      const {controls} = seen;
      show(tools, [controls.paused.all, source.can], drawTools);
      show(notice, {...controls, remarks: seen.remarks ?? []}, drawNotice);
      show(cards, [seen.counts, seen.throughput, seen.pending], drawCards);
      show(chart, seen.throughput, throughput);
      show(queues, [seen.queues.map(rounded), controls.max_types], drawQueues);
      show(aside, [seen.priorities.map(rounded), seen.exact, seen.workers, rate(seen)], drawAside);
      show(types, [seen.types, controls], drawTypes);
      show(failures, seen.failures, drawFailures);
    },
  };

  function drawTools([paused]) {
    if (!source.can.controls) return null;
    const whole = mayControl(source);
    return h('div', {class: 'buttons'},
      !whole ? null : paused ? h('button', {type: 'button', class: 'button primary', 'data-do': 'resume', on: {click: () => then(resume(source))}}, icon('resume'), 'Resume')
        : h('button', {type: 'button', class: 'button', 'data-do': 'pause', on: {click: () => then(pause(source))}}, icon('pause'), 'Pause'),
      whole && h('button', {type: 'button', class: 'button', 'data-do': 'limit', on: {click: () => then(setLimit())}}, icon('gauge'), 'Rate limit'),
      whole && h('button', {type: 'button', class: 'button', 'data-do': 'max-types', on: {click: () => then(limitTypes(source, {queues: seen.queues, limit: seen.controls.max_types}))}}, icon('gauge'), 'Type limit'),
      whole && h('button', {type: 'button', class: 'button', 'data-do': 'fleet-limit', on: {click: () => then(limitFleet(source, {known: seen.controls.fleet ?? {}}))}}, icon('gauge'), 'Fleet limit'),
      source.can.delete !== false && h('button', {type: 'button', class: 'button', 'data-do': 'cleanup', on: {click: () => then(cleanUp(source))}}, icon('broom'), 'Clean up'));
  }

  function setLimit(type) {
    const {limit, limits} = seen.controls;
    return limitRate(source, {types: seen.types.map((each) => each.type), limit, limits, type});
  }

  function drawNotice({paused, limit, limits, fleet = {}, remarks}) {
    const lines = [...remarks];
    if (paused.all) lines.push('Everything is paused: workers start no tasks.');
    if (paused.queues.length) lines.push(`Paused queues: ${paused.queues.join(', ')}.`);
    if (paused.types.length) lines.push(`Paused types: ${paused.types.join(', ')}.`);
    if (limit) lines.push(`Each worker starts at most ${limit} tasks per second.`);
    for (const [type, rate] of Object.entries(limits)) {
      lines.push(rate ? `${type}: at most ${rate} per second.` : `${type}: no limit, even if the code sets one.`);
    }
    for (const [scope, numbers] of Object.entries(fleet)) {
      lines.push(`${scope.replace(':', ' ')}: ${fleetNumbers(numbers)} across all workers.`);
    }
    return lines.length ? h('ul', {class: 'notice'}, lines.map((line) => h('li', {}, line))) : null;
  }

  function drawCards([counts, minutes, kinds]) {
    return STATUSES.map((status) => h('a', {class: `card stat ${status}`, href: address('tasks', {status}), 'data-status': status},
      h('span', {class: 'label'}, h('i'), status),
      h('b', {class: counts[status] ? '' : 'none', title: number(counts[status])}, short(counts[status])),
      status === 'pending' && kinds && counts.pending ? h('small', {class: 'quiet', 'data-kinds': true}, Object.entries(kinds).filter(([, count]) => count).map(([kind, count]) => `${short(count)} ${kind}`).join(' · ')) : null,
      status in (minutes[0] ?? {}) ? sparkline(minutes.map((each) => each[status]), status) : null));
  }

  function drawQueues([lines, maxTypes]) {
    if (!lines.length) return empty('No tasks yet', 'Submit one: qo submit --type hello');
    return h('div', {class: 'scroll'}, h('table', {class: 'plain'},
      h('thead', {}, h('tr', {}, ['Queue', 'Pending', 'Running', 'Failed', 'Longest wait', 'Types', ''].map((name, at) => h('th', {class: at && at < 6 ? 'number' : null, scope: 'col'}, name || h('span', {class: 'unseen'}, 'Pause or resume'))))),
      h('tbody', {}, lines.map((line) => h('tr', {'data-queue': line.queue},
        h('th', {scope: 'row'}, h('a', {href: address('tasks', {queue: line.queue})}, line.queue)),
        figure(line.pending, {queue: line.queue, status: 'pending'}), figure(line.running, {queue: line.queue, status: 'running'}),
        figure(line.failed, {queue: line.queue, status: 'failed'}, 'bad'),
        h('td', {class: 'number'}, line.oldest_age === null ? '–' : age(line.oldest_age)),
        liveTypes(line.live_types, maxTypes),
        h('td', {class: 'number'}, toggle(line.paused, {queue: line.queue})))))));
  }

  function toggle(paused, which) {
    const name = which.queue ?? which.type;
    if (!mayControl(source, which)) return paused ? h('span', {class: 'badge'}, 'paused') : null;
    const label = `${paused ? 'Resume' : 'Pause'} ${name}`;
    return h('button', {type: 'button', class: `icon-button ${paused ? 'on' : ''}`, 'aria-label': label, title: label,
      on: {click: () => then((paused ? resume : pause)(source, which))}}, icon(paused ? 'resume' : 'pause'));
  }

  function drawAside([priorities, exact, workers, perMinute]) {
    return [
      h('dl', {class: 'figures'},
        h('div', {}, h('dt', {}, 'Processing rate'), h('dd', {}, h('b', {}, short(perMinute)), ' / min'), h('dd', {class: 'quiet'}, `${short(perMinute * 60)} / h`)),
        ...['busy', 'idle', 'draining', 'stale'].filter((state) => state !== 'draining' || workers.draining).map((state) => h('div', {class: workers[state] ? state : ''},
          h('dt', {}, h('a', {href: address('workers', {show: state})}, `${state[0].toUpperCase()}${state.slice(1)} workers`)), h('dd', {}, h('b', {}, number(workers[state] ?? 0)))))),
      h('table', {class: 'plain'},
        h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, 'Priority'), h('th', {class: 'number', scope: 'col'}, 'Pending'), h('th', {class: 'number', scope: 'col'}, 'Longest wait'))),
        h('tbody', {}, priorities.map((line) => h('tr', {}, h('th', {scope: 'row'}, String(line.priority)),
          h('td', {class: 'number'}, `${exact ? '' : '~'}${short(line.depth)}`), h('td', {class: 'number'}, line.oldest_age === null ? '–' : `${exact ? '' : '≥ '}${age(line.oldest_age)}`))))),
      exact ? null : h('p', {class: 'quiet small'}, 'The queue is long, so the figures by priority are estimates.'),
    ];
  }

  function drawTypes([lines, {paused, limits}]) {
    if (!lines.length) return empty('No types yet', 'A type appears with its first task.');
    const most = Math.max(...lines.map(total));
    return h('ul', {class: 'types'}, lines.map((line) => h('li', {'data-type': line.type},
      h('a', {href: address('tasks', {type: line.type})}, line.type),
      h('span', {class: 'quiet number'}, limits[line.type] ? `≤ ${limits[line.type]}/s · ` : '', number(total(line))),
      stacked(['completed', 'running', 'pending', 'failed', 'cancelled', 'archived'].map((kind) => ({kind, value: line[kind]})), most),
      h('span', {class: 'row-tools'}, toggle(paused.types.includes(line.type), {type: line.type}),
        mayControl(source, {type: line.type}) && h('button', {type: 'button', class: 'icon-button', 'aria-label': `Limit ${line.type}`, title: `Limit ${line.type}`, on: {click: () => then(setLimit(line.type))}}, icon('gauge'))),
      line.unhandled ? h('p', {class: 'note unhandled'}, `${plural(line.unhandled, 'pending task')}: ${NO_HANDLER}`) : null)));
  }

  function drawFailures(tasks) {
    if (!tasks.length) return empty('Nothing has failed', 'Tasks that have failed permanently appear here.');
    return h('ol', {class: 'failures'}, tasks.map((task) => h('li', {},
      h('a', {href: taskAddress(task.id)}, h('b', {}, task.type), h('span', {class: 'quiet'}, ' in ', task.queue)),
      h('span', {class: 'quiet'}, ago(task.completed_at ?? task.updated_at)),
      h('p', {class: 'error-line'}, firstLine(task.error) || 'no error recorded'))));
  }
}

const key = (status) => h('span', {class: `key ${status}`}, h('i'), status);
const total = (line) => STATUSES.reduce((sum, status) => sum + line[status], 0);
const figure = (value, params, kind) => h('td', {class: `number ${value && kind ? kind : ''}`}, value ? h('a', {href: address('tasks', params)}, short(value)) : h('span', {class: 'quiet'}, '0'));
const liveTypes = (live, most) => h('td', {class: `number ${most && live >= most ? 'bad' : ''}`, 'data-types': live, title: `Unfinished tasks of ${plural(live, 'type')}; ${most ? `the limit is ${number(most)}` : 'no limit'}`},
  number(live), most ? h('span', {class: 'quiet'}, ` of ${number(most)}`) : null);
const rounded = (line) => ({...line, oldest_age: line.oldest_age === null ? null : Math.floor(line.oldest_age)});

// The current minute is incomplete, so the rate also covers the minutes before it.
function rate({throughput: minutes}) {
  const lately = minutes.slice(-RATE_PERIOD - 1);
  const done = lately.reduce((sum, each) => sum + each.completed + each.failed, 0);
  return Math.round((done * 10) / Math.max(1, lately.length)) / 10;
}
