// A bucket as a source: the page sends signed requests to the store, without a server.

import {typeLimitOf} from '../parts/type_limit.js';
import {AuditTrail, inWords} from './audit_trail.js';
import {parseFragment} from './credentials.js';
import {OneLayout} from './layout_one.js';
import {TasksLayout} from './layout_tasks.js';
import {listed} from './rows.js';
import {ACTIONS, STATUSES} from './rules.js';
import {S3, StoreError} from './s3.js';
import {readSchedules} from './schedules.js';
import {isControl, isWorker} from './shapes.js';
import {lastHour} from './stats.js';
import {consumersIn, countLanes, laneName, summarise, unhandledLanes} from './summary.js';
import {iso} from './values.js';

const LAYOUTS = {tasks: TasksLayout, one: OneLayout};
const PAGE_SIZE = 200; // tasks, for an action on all matching ones
const DEAD_AFTER = 90; // seconds without a heartbeat, as in qo.notes
const POLL_INTERVAL = 5000; // milliseconds
const CONTROL = 'control'; // the note with the controls
const CONSUMERS = 'consumers'; // the note with what clients dequeue
const MAX_GROUP_LENGTH = 160; // characters; longer values are stored as a hash
const GROUP = /^[A-Za-z_][A-Za-z0-9_]{0,63}=[A-Za-z0-9%=:._@/+,~-]{0,160}$/u;
const NO_CONTROLS = {paused: false, paused_queues: [], paused_types: [], rate_limit: 0, rate_limits: {}, draining: []};

export async function open(config) {
  if (!globalThis.crypto?.subtle) {
    throw new StoreError('insecure', 'Signing requires a secure page: open it over https or on localhost.');
  }
  const access = config.credentials instanceof Object ? config.credentials : parseFragment(config.credentials);
  if (!LAYOUTS[access.layout]) {
    throw new StoreError('layout', `A static page cannot read the layout ${access.layout}; use: qo serve`);
  }
  const s3 = new S3(access);
  // Fails early if the credentials are not valid. A role can only list what it reads.
  await s3.list(access.layout === 'one' ? 'queue.json' : 'ready/', {most: 1});
  const layout = new LAYOUTS[access.layout](s3);
  await layout.format?.check();
  return new BucketSource(s3, layout, access);
}

export class BucketSource {
  #layout;
  #s3;
  #trail;
  #unhandled = new Map(); // lanes that no worker handles, as of the last overview

  constructor(s3, layout, {write, bucket, prefix, expires, accessKeyId}) {
    this.#s3 = s3;
    this.clock = s3.clock;
    this.#trail = new AuditTrail(s3, accessKeyId);
    this.#layout = layout;
    this.title = `s3://${bucket}${prefix ? `/${prefix}` : ''}`;
    this.expires_at = expires ? iso(expires) : null;
    this.can = {write, live: false, controls: write, drain: write, ...layout.can};
  }

  /** Number of requests so far. */
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
    this.#unhandled = await this.#unhandledLanes(seen, workers, now);
    const throughput = lastHour(stats.notes, now);
    if (!stats.isComplete) remarks.push('Not all statistics have been read yet, so the actual throughput is higher.');
    return {...summarise({...seen, now, workers, unhandled: this.#unhandled, control: controlsIn(control)}), throughput, remarks};
  }

  /** Reads what clients dequeue only if no worker handles some tasks. */
  async #unhandledLanes(survey, workers, now) {
    const counted = countLanes(survey);
    const found = unhandledLanes(counted, workers);
    if (!found.size) return found;
    return unhandledLanes(counted, workers, consumersIn(await this.#layout.notes.read(CONSUMERS), now));
  }

  async tasks(filter = {}) {
    const page = await this.#layout.page(filter);
    return {...page, tasks: page.tasks.map((task) => this.#marked(task))};
  }

  async task(id) {
    return this.#marked(found(id, await this.#layout.task(id)));
  }

  /** With `unhandled` if the task is pending and no worker handles its type. */
  #marked(task) {
    const isUnhandled = task.status === 'pending' && this.#unhandled.has(laneName(task.queue, task.type));
    return isUnhandled ? {...task, unhandled: true} : task;
  }

  async history(id) {
    return found(id, await this.#layout.history(id));
  }

  async workers() {
    const now = this.#layout.now();
    return (await this.#layout.notes.workers()).filter(isWorker).map((note) => workerView(note, now));
  }

  /** Without their next fire times. */
  async schedules() {
    return readSchedules(this.#layout.notes, this.#layout.now());
  }

  // --- actions

  /** Compare-and-set writes under the rules of the model. Refused tasks are returned with the reason. */
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
      const page = await this.#layout.page({...filter, cursor, limit: PAGE_SIZE});
      ids.push(...page.tasks.filter(test).map((task) => task.id));
      cursor = page.cursor;
    } while (cursor);
    return ids;
  }

  async control(action, options = {}) {
    this.#mayWrite();
    if (action === 'cleanup') return this.#cleanUp(options);
    const how = CONTROLS[action];
    if (!how) throw new StoreError('refused', `${action} is not possible without a server; use: qo serve`);
    await this.#layout.notes.change(CONTROL, (control) => {
      if (!isControl(control)) throw new StoreError('unreadable', 'The stored controls are not in a format that this page understands.');
      return how(controlsIn(control), options);
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
      throw new StoreError('not_allowed', 'This link is read-only; create another with: qo dashboard link --write');
    }
  }

  /** A bucket sends no events: the page polls every few seconds, unless it is hidden. */
  watch(onChange, onState = () => {}) {
    onState('polling');
    const timer = setInterval(() => document.hidden || onChange(), POLL_INTERVAL);
    return () => clearInterval(timer);
  }

  close() {
    this.#s3 = this.#layout = null;
  }
}

const NAMES = {'rate-limit': 'limit', 'max-types': 'limit', 'fleet-limit': 'limit'}; // names in the audit trail

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
      throw new StoreError('refused', 'The limit must be a number of tasks per second; 0 means no limit.');
    }
    return type ? {...control, rate_limits: {...control.rate_limits, [type]: rate}} : {...control, rate_limit: rate};
  },
  'fleet-limit': (control, {type, queue, key, concurrency, rate, per, remove}) => {
    const scope = type ? `type:${type}` : queue ? `queue:${queue}` : `key:${parseGroup(key)}`;
    const {[scope]: _, ...others} = control.limits ?? {};
    return {...control, limits: remove ? others : {...others, [scope]: {concurrency, rate, per, key: null}}};
  },
  'max-types': (control, {max_types: limit}) => {
    try {
      return {...control, max_types: typeLimitOf(limit)};
    } catch (error) {
      throw new StoreError('refused', error.message);
    }
  },
};

// As `parse_group` in qo/model/group.py: a group as it is stored, or as people write it.
export function parseGroup(text) {
  if (GROUP.test(text)) return text;
  const [, name, value] = /^([A-Za-z_][A-Za-z0-9_]{0,63})=(.*)$/su.exec(text) ?? [];
  if (name === undefined) throw new StoreError('refused', `“${text}” is not an argument and its value, such as customer_id=42.`);
  const unescaped = encodeURIComponent(value).replace(/%(?:3D|3A|40|2F|2B|2C)/gu, decodeURIComponent);
  const group = `${name}=${unescaped.replace(/[!*'()]/gu, (each) => `%${each.charCodeAt(0).toString(16).toUpperCase()}`)}`;
  if (group.length > MAX_GROUP_LENGTH) throw new StoreError('refused', 'This value is too long for this page. Use qo limit --key.');
  return group;
}

function controlsIn(note) {
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
  const silent = now - note.last_heartbeat > DEAD_AFTER;
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
