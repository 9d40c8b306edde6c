// Limits across all workers: their numbers, who holds the slots, what waits, and buttons to set, change and remove them.

import {h, keyed, show} from '../parts/dom.js';
import {meter} from '../parts/chart.js';
import {ago} from '../parts/clock.js';
import {fleetNumbers, limitFleet, mayControl, removeFleetLimit} from '../parts/controls.js';
import {number, plural, shortId, shownGroup} from '../parts/format.js';
import {icon} from '../parts/icons.js';
import {address, taskAddress} from '../parts/router.js';
import {empty} from '../parts/states.js';

const HOLDERS_SHOWN = 5;

export function open({source, refresh}) {
  document.title = 'Limits · qo';
  const [list, nothing, tools] = [h('div', {class: 'limits'}), h('div'), h('div')];
  const summary = h('p', {class: 'summary', role: 'status'});
  const element = h('div', {}, h('div', {class: 'title'}, h('h1', {}, 'Limits'), summary, tools), list, nothing);
  let known = {};
  const then = (doing) => doing.then((done) => done && refresh());
  const set = (preset) => then(limitFleet(source, {known, preset}));

  return {
    element,
    async refresh() {
      const limits = source.fleetLimits ? await source.fleetLimits() : [];
      known = Object.fromEntries(limits.map((each) => [each.scope, each]));
      show(tools, [mayControl(source)], ([may]) => (may ? h('div', {class: 'buttons'}, h('button', {type: 'button', class: 'button', 'data-do': 'fleet-limit', on: {click: () => set()}}, icon('gauge'), 'Set a limit')) : null));
      keyed(list, limits, {key: (each) => each.scope, stamp: (each) => [each, source.can.controls, source.limits], build: card});
      show(nothing, [limits.length], ([count]) => (count ? null : empty(...hints(source))));
      const held = limits.filter((limit) => limit.groups.some((group) => group.waiting && group.waits_for.length)).length;
      summary.textContent = limits.length ? `${plural(limits.length, 'limit')}${held ? `, ${number(held)} reached` : ''}` : '';
    },
  };

  function card(limit) {
    const [kind, name] = split(limit.scope);
    const may = mayControl(source, kind === 'key' ? {} : {[kind]: name});
    const more = limit.group_count - limit.groups.length;
    return h('article', {class: 'card limit', 'data-limit': limit.scope},
      h('header', {}, h('h2', {}, kind === 'key' ? shownGroup(name) : [`${kind} `, h('a', {href: address('tasks', {[kind]: name})}, name)]),
        h('span', {class: 'badge'}, limit.is_live ? 'set at run time' : 'in the code'),
        may ? h('span', {class: 'buttons'},
          h('button', {type: 'button', class: 'button small', 'data-do': 'change', on: {click: () => set({kind, name})}}, 'Change'),
          limit.is_live ? h('button', {type: 'button', class: 'button small', 'data-do': 'remove', on: {click: () => then(removeFleetLimit(source, {kind, name}))}}, 'Remove') : null) : null),
      h('p', {'data-part': 'numbers'}, `${numbers(limit)}.`, limit.waiting === null ? '' : ` ${plural(limit.waiting, 'pending task')}.`),
      limit.groups.length ? table(limit, kind) : h('p', {class: 'quiet'}, 'No tasks of it run or wait.'),
      more > 0 ? h('p', {class: 'quiet small', 'data-part': 'more'}, `and ${plural(more, 'more group')} with fewer waiting tasks`) : null,
      limit.is_exact ? null : h('p', {class: 'quiet small'}, 'Not all waiting tasks could be counted by group, so the numbers are lower bounds.'));
  }

  function table(limit, kind) {
    const first = kind === 'key' ? 'Type' : limit.key ?? 'Tasks';
    const perGroup = limit.key !== null && mayControl(source);
    return h('div', {class: 'scroll'}, h('table', {class: 'plain'},
      h('thead', {}, h('tr', {}, [first, 'Running', 'Waiting', 'Waits for', 'Held by'].map((name, at) => h('th', {scope: 'col', class: at === 2 ? 'number' : null}, name)),
        perGroup ? h('th', {scope: 'col'}, h('span', {class: 'unseen'}, 'Limit this value')) : null)),
      h('tbody', {}, limit.groups.map((group) => h('tr', {'data-group': kind === 'key' ? group.type : group.group},
        h('th', {scope: 'row'}, label(limit, group, kind)),
        h('td', {class: 'slots'}, slots(group)),
        h('td', {class: 'number'}, `${limit.is_exact || !group.waiting ? '' : '≥ '}${number(group.waiting)}`),
        h('td', {}, reasons(group)),
        h('td', {}, holders(group)),
        perGroup ? h('td', {class: 'number'}, group.group.includes('=') ? h('button', {type: 'button', class: 'icon-button', 'aria-label': `Limit ${group.name}`, title: `Limit ${group.name}`,
          on: {click: () => set({kind: 'key', name: group.group, numbers: group})}}, icon('gauge')) : null) : null)))));
  }
}

const split = (scope) => [scope.slice(0, scope.indexOf(':')), scope.slice(scope.indexOf(':') + 1)];

function numbers(limit) {
  const text = fleetNumbers(limit);
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${limit.key ? ` for each ${limit.key}` : ''}`;
}

function label(limit, group, kind) {
  if (kind === 'key') return h('a', {href: address('tasks', {type: group.type})}, group.type);
  if (!group.group) return limit.key ? 'without a readable value' : 'all';
  const prefix = `${limit.key}=`;
  return group.name.startsWith(prefix) ? group.name.slice(prefix.length) || '""' : group.name;
}

function slots({running, concurrency}) {
  if (!concurrency) return number(running);
  const text = `${number(running)} of ${number(concurrency)}`;
  return h('div', {class: 'load'}, meter(running / concurrency, `${text} slots used`), h('span', {}, text));
}

// What the tasks of a group wait for; empty if one may start now.
function reasons(group) {
  if (!group.waits_for.length) return h('span', {class: 'quiet'}, '–');
  return group.waits_for.map((reason) => h('p', {'data-part': 'waits'}, reason.startsWith('the rate') && group.next_start_at ? [reason, ', ', ago(group.next_start_at)] : reason));
}

function holders({holders: all, running}) {
  if (!all.length) return h('span', {class: 'quiet'}, '–');
  const more = running - Math.min(all.length, HOLDERS_SHOWN);
  return h('ul', {class: 'holders'}, all.slice(0, HOLDERS_SHOWN).map((each) => h('li', {},
    h('a', {href: taskAddress(each.task_id)}, h('code', {}, shortId(each.task_id))), ' in ', h('a', {href: address('tasks', {worker: each.worker_id})}, each.worker_id || 'an unknown worker'),
    h('span', {class: 'quiet'}, ' ', ago(each.since)))),
    more > 0 ? h('li', {class: 'quiet'}, `and ${number(more)} more`) : null);
}

function hints(source) {
  if (!source.fleetLimits) return ['Limits need a server', 'This page reads the bucket itself. qo serve shows who holds the slots of each limit, and so does qo limit.'];
  return ['No limits across all workers', 'In the code: @app.task(limit=qo.Limit(concurrency=5, key="customer_id"))', 'At run time: qo limit --type send_email --concurrency 20'];
}
