// The bucket itself as a source: no server, only signed requests from this page to the store.

import {typeLimitOf} from '../parts/type_limit.js';
import {AuditTrail, inWords} from './audit_trail.js';
import {parseFragment} from './credentials.js';
import {OneLayout} from './layout_one.js';
import {TasksLayout} from './layout_tasks.js';
import {listed} from './rows.js';
import {ACTIONS, STATUSES} from './rules.js';
import {S3, StoreError} from './s3.js';
import {isControl, isWorker} from './shapes.js';
import {lastHour} from './stats.js';
import {summarise} from './summary.js';
import {iso} from './values.js';

const LAYOUTS = {tasks: TasksLayout, one: OneLayout};
const PAGE = 200; // tasks, when all that match are acted upon
const SILENCE = 90; // seconds after which a worker is dead, as in qo.notes
const POLL = 5000; // milliseconds
const CONTROL = 'control'; // the note all workers obey
const NO_CONTROLS = {paused: false, paused_queues: [], paused_types: [], rate_limit: 0, rate_limits: {}, draining: []};

export async function open(config) {
  if (!globalThis.crypto?.subtle) {
    throw new StoreError('insecure', 'Signing needs a secure page: open it over https, or from this very machine.');
  }
  const access = config.credentials instanceof Object ? config.credentials : parseFragment(config.credentials);
  if (!LAYOUTS[access.layout]) {
    throw new StoreError('layout', `The layout ${access.layout} cannot be read by a page; use: qo serve`);
  }
  const s3 = new S3(access);
  // Whether these credentials open anything, said at once. A role lists only what it reads.
  await s3.list(access.layout === 'one' ? 'queue.json' : 'ready/', {most: 1});
  const layout = new LAYOUTS[access.layout](s3);
  await layout.format?.check();
  return new BucketSource(s3, layout, access);
}

export class BucketSource {
  #layout;
  #s3;
  #trail;

  constructor(s3, layout, {write, bucket, prefix, expires, accessKeyId}) {
    this.#s3 = s3;
    this.#trail = new AuditTrail(s3, accessKeyId);
    this.#layout = layout;
    this.title = `s3://${bucket}${prefix ? `/${prefix}` : ''}`;
    this.expires_at = expires ? iso(expires) : null;
    this.can = {write, live: false, controls: write, drain: write, ...layout.can};
  }

  /** Requests made so far. */
  get requests() {
    return this.#s3.requests;
  }

  async overview() {
    const {notes} = this.#layout;
    const [survey, control, workers, stats] = await Promise.all([
      this.#layout.survey(), notes.read(CONTROL), this.workers(), this.#layout.stats(),
    ]);
    const now = this.#layout.now();
    const {remarks, ...seen} = survey;
    const throughput = lastHour(stats.notes, now);
    if (!stats.isComplete) remarks.push('Not all statistics have been read yet: the throughput is higher than shown.');
    return {...summarise({...seen, now, workers, control: switchesIn(control)}), throughput, remarks};
  }

  tasks(filter = {}) {
    return this.#layout.page(filter);
  }

  async task(id) {
    return found(id, await this.#layout.task(id));
  }

  async history(id) {
    return found(id, await this.#layout.history(id));
  }

  async workers() {
    const now = this.#layout.now();
    return (await this.#layout.notes.workers()).filter(isWorker).map((note) => workerView(note, now));
  }

  // --- acting

  /** Compare-and-set writes under the rules of the model. What the store or the rules refuse is named, with why. */
  async act(action, target, progress = () => {}) {
    this.#mayWrite();
    if (target.ids) return this.#recorded(action, '', [...new Set(target.ids)], progress);
    const asked = listed(target.filter.status);
    const normal = STATUSES.filter((status) => status !== 'archived');
    const status = (asked.length ? asked : normal).filter((each) => ACTIONS[action].from.includes(each));
    if (!status.length) return {done: 0, refused: []};
    const filter = {...target.filter, status};
    return this.#recorded(action, inWords(filter), await this.#matching(filter), progress);
  }

  async #recorded(action, target, ids, progress) {
    const answer = await this.#layout.act(action, ids, progress);
    const refused = new Set(answer.refused.map(({id}) => id));
    const changed = ids.filter((id) => !refused.has(id));
    if (answer.done) await this.#trail.record(action, {target, ids: changed, number: answer.done});
    return answer;
  }

  async #matching(filter, test = () => true) {
    const ids = [];
    let cursor = null;
    do {
      const page = await this.#layout.page({...filter, cursor, limit: PAGE});
      ids.push(...page.tasks.filter(test).map((task) => task.id));
      cursor = page.cursor;
    } while (cursor);
    return ids;
  }

  async control(action, options = {}) {
    this.#mayWrite();
    if (action === 'cleanup') return this.#cleanUp(options);
    const how = CONTROLS[action];
    if (!how) throw new StoreError('refused', `${action} cannot be done from a bucket alone; use: qo serve`);
    await this.#layout.notes.change(CONTROL, (control) => {
      if (!isControl(control)) throw new StoreError('unreadable', 'The stored controls are not in a format that this page understands.');
      return how(switchesIn(control), options);
    });
    const target = action === 'max-types' ? `${options.max_types} types` : inWords(options);
    await this.#trail.record(NAMES[action] ?? action, {target});
    return {done: 1};
  }

  async #cleanUp({older_than: olderThan, status}) {
    const before = typeof olderThan === 'number'
      ? iso(this.#layout.now() - olderThan) : new Date(olderThan).toISOString();
    const isOld = (task) => task.completed_at !== null && task.completed_at <= before;
    const statuses = listed(status);
    const filter = {status: statuses.length ? statuses : ['completed']};
    const {done, refused} = await this.#recorded('delete', `${inWords(filter)}, ended before ${before}`, await this.#matching(filter, isOld), () => {});
    return {deleted: done, refused};
  }

  #mayWrite() {
    if (!this.can.write) {
      throw new StoreError('not_allowed', 'This link may only look; make one with: qo dashboard link --write');
    }
  }

  /** A bucket sends no news: the page asks again every few seconds, and not while nobody looks. */
  watch(onChange, onState = () => {}) {
    onState('polling');
    const timer = setInterval(() => document.hidden || onChange(), POLL);
    return () => clearInterval(timer);
  }

  close() {
    this.#s3 = this.#layout = null;
  }
}

const NAMES = {'rate-limit': 'limit', 'max-types': 'limit'}; // what the audit trail calls it

// As in qo/controls.py.
const CONTROLS = {
  drain: (control, {worker}) => ({...control, draining: union(control.draining, worker)}),
  pause: (control, {queue, type}) => ({
    ...control,
    paused: control.paused || !(queue || type),
    paused_queues: union(control.paused_queues, queue),
    paused_types: union(control.paused_types, type),
  }),
  resume: (control, {queue, type}) =>
    queue || type
      ? {
          ...control,
          paused_queues: control.paused_queues.filter((name) => name !== queue),
          paused_types: control.paused_types.filter((name) => name !== type),
        }
      : {...control, paused: false, paused_queues: [], paused_types: []},
  'rate-limit': (control, {type, limit}) => {
    const rate = Number(limit);
    if (!(rate >= 0 && rate < Infinity)) {
      throw new StoreError('refused', 'A limit is a number of tasks a second, 0 for none.');
    }
    return type ? {...control, rate_limits: {...control.rate_limits, [type]: rate}} : {...control, rate_limit: rate};
  },
  'max-types': (control, {max_types: limit}) => {
    try {
      return {...control, max_types: typeLimitOf(limit)};
    } catch (error) {
      throw new StoreError('refused', error.message);
    }
  },
};

function switchesIn(note) {
  return {...NO_CONTROLS, ...(isControl(note) ? note : {})};
}

function union(names, name) {
  return name && !names.includes(name) ? [...names, name] : names;
}

function found(id, thing) {
  if (!thing) throw new StoreError('not_found', `There is no task ${id}.`);
  return thing;
}

function workerView(note, now) {
  const silent = now - note.last_heartbeat > SILENCE;
  const status = silent || note.status === 'dead' ? 'stale' : note.status === 'draining' ? 'draining' : null;
  return {
    id: note.worker_id,
    status: status ?? (note.current_load ? 'busy' : 'idle'),
    queues: note.queues ?? [],
    types: note.types ?? [],
    capabilities: note.capabilities ?? [],
    current: note.current_tasks ?? [],
    counters: {completed: note.tasks_completed ?? 0, failed: note.tasks_failed ?? 0},
    load: note.current_load ?? 0,
    waiting: note.waiting ?? 0,
    capacity: note.capacity,
    heartbeat_at: iso(note.last_heartbeat),
    started_at: iso(note.started_at),
    host: note.host ?? '',
    version: note.version ?? '',
  };
}
