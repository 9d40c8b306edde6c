// The list of tasks: filters, order, pages, selection, actions.

import {h, keyed, show} from '../parts/dom.js';
import {act as actOn} from '../parts/actions.js';
import {FIELDS, filterBar} from '../parts/filters.js';
import {number, plural} from '../parts/format.js';
import {icon} from '../parts/icons.js';
import {address, go, taskAddress} from '../parts/router.js';
import {COLUMNS, taskRow} from '../parts/rows.js';
import {empty} from '../parts/states.js';
import {ACTIONS, actionButton, actionOf, actions, pendingKind} from '../parts/status.js';
import {complain} from '../parts/toast.js';

const LIMIT = 50;
const COUNTS_AGE = 4000; // milliseconds for which the counts above the list are reused

export function open({source, to, refresh}) {
  document.title = 'Tasks · qo';
  let {params} = to;
  let page = {tasks: [], cursor: null, total: null};
  let counted = -Infinity; // when the counts above the list were requested
  let overview = null;
  let current = null; // the task selected by the keyboard
  let everything = false; // all matching tasks on all pages are selected
  const selected = new Set();
  const before = []; // cursors of the previous pages
  const bar = filterBar(source, change);
  const body = h('tbody');
  const all = h('input', {type: 'checkbox', 'aria-label': 'Select the page', on: {change: () => pick(all.checked)}});
  const table = h('table', {class: 'tasks'},
    h('thead', {}, h('tr', {}, COLUMNS.map((name, at) => h('th', {scope: 'col', class: at === 5 ? 'number' : null},
      at === 0 ? all : name || h('span', {class: 'unseen'}, 'Actions'))))), body);
  const nothing = h('div');
  const chosen = h('div', {class: 'selection', role: 'region', 'aria-label': 'Selection', hidden: true});
  const summary = h('p', {class: 'summary', role: 'status'});
  const previous = h('button', {type: 'button', class: 'button', on: {click: goBack}}, icon('back'), 'Previous');
  const next = h('button', {type: 'button', class: 'button', on: {click: goOn}}, 'Next', icon('next'));
  const element = h('div', {},
    h('div', {class: 'title'}, h('h1', {}, 'Tasks'), summary), bar.element, chosen,
    h('div', {class: 'card flush'}, h('div', {class: 'scroll'}, table), nothing),
    h('nav', {class: 'pages', 'aria-label': 'Pages'}, previous, next));
  bar.set(params);
  source.workers().then((workers) => bar.knowWorkers(workers.map((each) => each.id)), () => {});

  return {
    element,
    keys: {
      '/': bar.focus, j: () => step(1), k: () => step(-1), x: () => current && toggle(current, !selected.has(current)),
      a: () => pick(!page.tasks.every((task) => selected.has(task.id))), n: goOn, p: goBack,
      Enter: () => current && go(taskAddress(current)),
      Escape: drop,
      ...Object.fromEntries(Object.entries(ACTIONS).filter(([, {single}]) => !single).map(([name, {key}]) => [key, () => actOnSome(name)])),
    },
    update(moved) {
      if (!sameFilter(params, moved.params)) drop();
      params = moved.params;
      bar.set(params);
      if (overview) bar.know(overview, params);
      return true;
    },
    async refresh() {
      const asked = params;
      count();
      const answer = await source.tasks(query(asked));
      if (asked !== params) return; // the filters have changed in the meantime
      page = answer;
      draw();
    },
  };

  // Runs concurrently with the request for the list, which reports errors.
  function count() {
    if (performance.now() - counted < COUNTS_AGE) return;
    counted = performance.now();
    source.overview().then((answer) => {
      overview = answer;
      bar.know(overview, params);
    }, () => { counted = -Infinity; });
  }

  function filter(from = params) {
    const one = (name) => from.get(name) || undefined;
    return {status: from.getAll('status'), type: one('type'), queue: one('queue'), worker: one('worker'), batch: one('batch'), priority: one('priority'), text: one('text'), shard: one('shard')};
  }

  function query(from) {
    return {...filter(from), sort: from.get('sort') || undefined, cursor: from.get('after') || undefined, limit: LIMIT};
  }

  function change(values) {
    const now = Object.fromEntries([...FIELDS, 'status'].map((name) => [name, params.getAll(name)]));
    before.length = 0;
    go(address('tasks', {...now, ...values}), {replace: 'text' in values || 'worker' in values || 'batch' in values});
  }

  function goOn() {
    if (!page.cursor) return;
    before.push(params.get('after') ?? '');
    move(page.cursor);
  }

  function goBack() {
    if (params.get('after')) move(before.pop() ?? '');
  }

  function move(after) {
    const now = Object.fromEntries([...FIELDS, 'status'].map((name) => [name, params.getAll(name)]));
    current = null;
    go(address('tasks', {...now, after}));
    window.scrollTo(0, 0);
  }

  function draw() {
    const {tasks, cursor, total} = page;
    if (current && !tasks.some((task) => task.id === current)) current = null;
    keyed(body, tasks, {
      key: (task) => task.id,
      stamp: (task) => [task.version, task.status, pendingKind(task), task.unhandled, selected.has(task.id) || everything, task.id === current, source.can],
      build: (task) => taskRow(task, {selected: selected.has(task.id) || everything, current: task.id === current, can: source.can, toggle, act: (name) => perform(name, {ids: [task.id]}, 1)}),
    });
    table.hidden = !tasks.length;
    show(nothing, [tasks.length === 0, cursor, params.toString()], ([none]) => none && nothingHere());
    previous.disabled = !params.get('after');
    next.disabled = !cursor;
    next.firstChild.textContent = page.searched !== undefined && cursor && tasks.length < LIMIT ? 'Search older tasks' : 'Next';
    summary.textContent = said(page);
    all.hidden = !source.can.write;
    all.checked = tasks.length > 0 && tasks.every((task) => selected.has(task.id) || everything);
    all.indeterminate = !all.checked && tasks.some((task) => selected.has(task.id));
    drawSelection(total);
  }

  function nothingHere() {
    if (page.cursor) return empty('No matching tasks so far', `${plural(page.searched ?? 0, 'task')} searched. “Search older tasks” continues.`);
    const filtered = [...FIELDS, 'status'].some((name) => params.has(name));
    return filtered ? empty('No matching tasks', 'Remove a filter, or clear all of them.') : empty('No tasks yet', 'Submit one: qo submit --type hello --input \'{"name": "Ada"}\'');
  }

  function drawSelection(total) {
    const count = everything ? total : selected.size;
    chosen.hidden = !everything && selected.size === 0;
    show(chosen, [everything, count, page.tasks.length, page.cursor !== null, total], () => [
      h('b', {}, everything ? (total === null ? 'All matching tasks selected' : `All ${plural(total, 'matching task')} selected`) : `${plural(selected.size, 'task')} selected`),
      !everything && (page.cursor !== null || params.get('after')) ? h('button', {type: 'button', class: 'link', 'data-do': 'everything', on: {click: () => { everything = true; draw(); }}},
        total === null ? 'Select all matching tasks' : `Select all ${plural(total, 'matching task')}`) : null,
      h('span', {class: 'buttons'}, actions(source.can).map((name) => actionButton(name, () => actOnSome(name)))),
      h('button', {type: 'button', class: 'icon-button', 'aria-label': 'Clear the selection', on: {click: drop}}, icon('close')),
    ]);
  }

  function toggle(id, on) {
    everything = false;
    if (on) selected.add(id);
    else selected.delete(id);
    draw();
  }

  function pick(on) {
    everything = false;
    for (const task of page.tasks) {
      if (on) selected.add(task.id);
      else selected.delete(task.id);
    }
    draw();
  }

  function drop() {
    everything = false;
    selected.clear();
    draw();
  }

  function step(by) {
    const at = page.tasks.findIndex((task) => task.id === current);
    const to_ = at < 0 ? 0 : Math.max(0, Math.min(page.tasks.length - 1, at + by));
    current = page.tasks[to_]?.id ?? null;
    draw();
    body.children[to_]?.scrollIntoView({block: 'nearest'});
  }

  function actOnSome(name) {
    if (!source.can.write || !actions(source.can).includes(name)) return;
    if (everything) perform(name, {filter: filter()}, page.total);
    else if (selected.size) perform(name, {ids: [...selected]}, selected.size);
    else if (current) perform(actionOf(ACTIONS[name].key, page.tasks.find((task) => task.id === current), source.can) ?? name, {ids: [current]}, 1);
  }

  async function perform(name, target, count) {
    try {
      if (!(await actOn(source, name, target, count))) return;
      counted = -Infinity;
      drop();
      await refresh();
    } catch (error) {
      complain(error);
    }
  }
}

function sameFilter(one, other) {
  const plain = (params) => [...FIELDS, 'status'].map((name) => params.getAll(name).join()).join('&');
  return plain(one) === plain(other);
}

function said({tasks, total, searched, window: among}) {
  const parts = [total === null ? `${plural(tasks.length, 'task')} on this page` : plural(total, 'task')];
  if (searched !== undefined) parts.push(`${number(searched)} searched`);
  if (among) parts.push(`sorted among the newest ${number(among)}`);
  return parts.join(' · ');
}
