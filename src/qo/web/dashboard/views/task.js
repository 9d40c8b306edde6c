// One task: status, history, payload, result, error.

import {h, show} from '../parts/dom.js';
import {act} from '../parts/actions.js';
import {diffTable} from '../parts/diff.js';
import {duration, instant, level, seconds, shownGroup} from '../parts/format.js';
import {icon} from '../parts/icons.js';
import {machine} from '../parts/machine.js';
import {address, batchAddress, go, taskAddress, workflowAddress} from '../parts/router.js';
import {ACTIONS, NO_HANDLER, actionButton, actionOf, allowedFor, isBlocked, pendingKind, taskBadge} from '../parts/status.js';
import {ago, countdown, fuse, now} from '../parts/clock.js';
import {strip, timeline} from '../parts/timeline.js';
import {copy, jsonTree} from '../parts/tree.js';
import {changeWorkflow, workflowButton} from '../parts/workflow_actions.js';

export function open({source, to, refresh}) {
  const {id} = to;
  let task = null;
  let history = [];
  let reasons = []; // why it is waiting
  const names = ['head', 'lease', 'why', 'path', 'payload', 'result', 'error', 'facts', 'time', 'versions'];
  const part = Object.fromEntries(names.map((name) => [name, h('div', {'data-part': name})]));
  const section = (title, inside, extra) => h('section', {class: 'card', 'data-section': title.toLowerCase()}, h('header', {}, h('h2', {}, title), extra), inside);
  const result = section('Result', part.result);
  const error = section('Error', part.error);
  const versions = section('Versions', part.versions);
  const element = h('div', {},
    h('p', {class: 'way'}, h('a', {href: '#/tasks', on: {click: back}}, icon('back'), 'Tasks')), part.head, part.lease, part.why,
    h('div', {class: 'task'},
      h('div', {class: 'column'}, error, section('Payload', part.payload), result, versions),
      h('div', {class: 'column'}, section('Life cycle', part.path), section('Attempts', part.time), section('Details', part.facts))));
  const choice = {from: null, to: null};

  return {
    element,
    keys: {u: back, ...Object.fromEntries(Object.values(ACTIONS).map(({key}) => [key, () => performKey(key)]))},
    async refresh() {
      [task, history] = await Promise.all([source.task(id), source.history(id)]);
      reasons = task.status === 'pending' && source.explain ? (await source.explain(id)).reasons : [];
      draw();
    },
  };

  function back(event) {
    event?.preventDefault?.();
    if (window.history.length > 1 && event?.type === 'click') window.history.back();
    else go('#/tasks');
  }

  function performKey(key) {
    const name = task && actionOf(key, task, source.can);
    if (name) perform(name);
  }

  async function perform(name) {
    if (!source.can.write || !(await act(source, name, {ids: [id]}, 1))) return;
    if (name === 'delete') go('#/tasks');
    else refresh();
  }

  async function replayFromHere() {
    if (await changeWorkflow(source, task.workflow, 'replay_from', task)) refresh();
  }

  function draw() {
    document.title = `${task.type} · qo`;
    show(part.head, [task.type, task.status, pendingKind(task), task.available_at, task.workflow, source.can], drawHead);
    show(part.lease, [task.status, task.progress, task.progress_text, task.lease_expires_at, task.available_at, task.worker_id, task.unhandled], drawLease);
    show(part.why, reasons.map(({text}) => text), drawReasons);
    show(part.path, [history.map((event) => event.status), task.status], () => [h('div', {class: 'scroll'}, machine(history, task.status)), strip(history)]);
    show(part.payload, task.payload, () => jsonTree(task.payload));
    result.hidden = task.result === null || task.result === undefined;
    if (!result.hidden) show(part.result, task.result, () => jsonTree(task.result));
    error.hidden = !task.error;
    if (task.error) show(part.error, task.error, () => drawError(task.error));
    show(part.facts, {...task, payload: null, result: null, error: null}, drawFacts);
    show(part.time, history, () => timeline(history));
    versions.hidden = !source.can.versions || history.length === 0;
    if (!versions.hidden) show(part.versions, history, drawVersions);
  }

  function drawHead() {
    return h('div', {class: 'title'},
      h('h1', {}, task.type, ' ', ...taskBadge(task)),
      h('p', {class: 'summary'}, h('code', {class: 'id'}, task.id), h('button', {type: 'button', class: 'icon-button', 'aria-label': 'Copy the id', on: {click: () => copy(task.id)}}, icon('copy')),
        task.workflow && source.can.workflows ? h('span', {}, 'in ', h('a', {href: workflowAddress(task.workflow), 'data-workflow-link': true}, task.workflow)) : null),
      source.can.write ? h('div', {class: 'buttons'}, allowedFor(task, source.can).map((name) => actionButton(name, () => perform(name))),
        task.workflow && source.can.change_workflows && task.completed_at ? workflowButton('replay_from', replayFromHere) : null) : null);
  }

  function drawLease() {
    if (task.status === 'running' && task.lease_expires_at) {
      return h('p', {class: 'lease running', 'data-lease': true}, progressOf(task), 'Leased by ', h('a', {href: address('tasks', {worker: task.worker_id})}, task.worker_id), ', expires ', countdown(task.lease_expires_at, 'now (overdue)'), fuse(task.updated_at, task.lease_expires_at));
    }
    if (isBlocked(task)) return source.explain ? null : h('p', {class: 'lease pending', 'data-blocked': true}, 'Waiting for other tasks of its workflow.');
    if (task.status === 'pending' && seconds(task.available_at) > now()) {
      return h('p', {class: 'lease pending'}, task.failures ? `${task.failures} of ${task.max_retries + 1} allowed failures. Retry ` : 'Due ', countdown(task.available_at, 'now'), fuse(task.updated_at, task.available_at));
    }
    if (task.unhandled) return h('p', {class: 'lease pending', 'data-unhandled': true}, `Waiting: ${NO_HANDLER}.`);
    return null;
  }

  function progressOf({progress, progress_text: text}) {
    if (progress === null || progress === undefined) return null;
    const percent = `${Math.floor(progress * 100)} %`;
    return h('span', {'data-progress': percent}, h('progress', {max: '1', value: String(progress), 'aria-label': 'Progress'}), ` ${percent}${text ? ` ${text}` : ''}. `);
  }

  function drawReasons() {
    if (!reasons.length) return null;
    return h('ul', {class: 'notice', 'data-why': true}, reasons.map(({kind, text, is_blocking: blocks}) => h('li', {'data-reason': kind, class: blocks ? null : 'quiet'}, linked(`${text[0].toUpperCase()}${text.slice(1)}.`))));
  }

  function drawError(text) {
    const [first, ...rest] = text.trim().split('\n');
    return [h('p', {class: 'error-title'}, first), rest.length ? h('details', {open: true}, h('summary', {}, 'Traceback'), h('pre', {class: 'trace'}, rest.join('\n'))) : null];
  }

  function drawFacts() {
    const worked = task.started_at && task.completed_at ? duration(seconds(task.completed_at) - seconds(task.started_at)) : null;
    const rows = [
      ['Queue', h('a', {href: address('tasks', {queue: task.queue})}, task.queue)],
      ['Priority', task.effective_priority !== undefined && task.effective_priority !== task.priority ? `${level(task.priority)}, raised to ${task.effective_priority} by ageing` : level(task.priority)],
      ['Batch', task.batch && h('a', {href: source.batch ? batchAddress(task.batch) : address('tasks', {batch: task.batch})}, task.batch)], ['Failure', task.failure_kind], ['Before archiving', task.archived_from],
      ['Attempts', `${task.attempt} (${task.failures} of ${task.max_retries + 1} allowed failures)`],
      ['Created', stamp(task.created_at)], ['Available', isBlocked(task) ? 'when its parent tasks have completed' : stamp(task.available_at)], ['Started', task.status === 'running' && !task.started_at ? 'claimed, not started' : stamp(task.started_at)],
      ['Ended', stamp(task.completed_at)], ['Last attempt', worked], ['Last change', stamp(task.updated_at)],
      ['Worker', task.worker_id && h('a', {href: address('tasks', {worker: task.worker_id})}, task.worker_id)],
      ['Timeout', duration(task.timeout)], ['Group', task.group && shownGroup(task.group)], ['Needs', task.needs?.length ? task.needs.map((name) => h('span', {class: 'tag'}, name)) : null],
      ['Back-off', task.retry && `${duration(task.retry.initial)} × ${task.retry.multiplier}, at most ${duration(task.retry.max)}`],
      ['Idempotency key', task.idempotency_key && h('code', {}, task.idempotency_key)], ['Trace', task.trace_id && h('code', {}, task.trace_id)], ['Version', String(task.version)],
    ];
    return h('dl', {class: 'facts wide'}, rows.filter(([, value]) => value).map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
  }

  function drawVersions() {
    const known = history.filter((event) => event.task);
    if (known.length < 2) return h('p', {class: 'quiet'}, 'There is only one version.');
    const has = (version) => known.some((event) => event.version === version);
    if (!has(choice.to) || choice.to === choice.last) choice.to = known.at(-1).version;
    if (!has(choice.from) || choice.from === choice.to) choice.from = known.at(-2).version;
    choice.last = known.at(-1).version;
    const out = h('div', {'aria-live': 'polite'});
    const select = (name, label) => h('select', {'aria-label': label, 'data-version': name, on: {change: (event) => {
      choice[name] = Number(event.target.value);
      compare();
    }}}, known.map((event) => h('option', {value: String(event.version), selected: event.version === choice[name]}, `${event.version} · ${event.status} · ${instant(event.at)}`)));
    const compare = () => out.replaceChildren(diffTable(...[choice.from, choice.to].map((version) => known.find((event) => event.version === version).task)));
    compare();
    return [h('div', {class: 'versions'}, h('label', {}, 'From', select('from', 'From version')), h('label', {}, 'To', select('to', 'To version'))), out];
  }
}

const ID = /([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})/;

// Ids of other tasks become links.
const linked = (text) => text.split(ID).map((each) => (ID.test(each) ? h('a', {href: taskAddress(each)}, each) : each));

const stamp = (iso) => (iso ? [instant(iso), h('span', {class: 'quiet'}, ' · ', ago(iso))] : null);
