// The layout `one`: the whole queue in one object, as in qo/engines/one_object.

import {parsed, sealed} from './checksum.js';
import {filled, referredBy} from './large_values.js';
import {putDocument} from './own_writes.js';
import {history} from './history.js';
import {compare, comparer, matcher, rowOf, rowView, sorting} from './rows.js';
import {ACTIONS, apply, eventOf, newWriteId, refusal, whole} from './rules.js';
import {StoreError} from './s3.js';
import {isEvent, isTask} from './shapes.js';
import {readStats} from './stats.js';
import {base64Of, taskView, textOf} from './values.js';

const KEY = 'queue.json';
const SIGNAL = `${KEY}.contention`; // asks other writers to pause, as in qo/engines/contention.py
const FORMAT = 2;
const MAX_WRITES = 64; // write ids kept, to recognise a write after this many further writes
const MAX_EVENTS = 64;
const MAX_ATTEMPTS = 30;
const SIGNAL_INTERVAL = 10; // conflicts between two signals
const MAX_DELAY = 300; // milliseconds after a conflict
const EMPTY = {format: FORMAT, version: 0, writes: [], notes: [], tasks: []};

export class OneLayout {
  #etag = null; // of the object that was read; null if there is none
  #queue = EMPTY;
  #rows = null;
  #reading = null;

  constructor(s3) {
    this.s3 = s3;
    this.can = {shards: true, versions: true};
    this.notes = {
      read: async (name) => this.#note((await this.#read()).notes, name),
      workers: async () => (await this.#read()).notes.filter(isRegistration).map((note) => valueOf(note)),
      find: async (prefix, wanted) => ({notes: found((await this.#read()).notes, prefix, wanted), isComplete: true}),
      change: (name, how) => this.#change((queue) => withNote(queue, name, how(this.#note(queue.notes, name) ?? {}))),
    };
  }

  now() {
    return this.s3.clock.now();
  }

  #note(notes, name) {
    const note = notes.find((each) => each.name === name);
    return note ? valueOf(note) : null;
  }

  /** The queue, read again only if it changed. Concurrent callers share one request. */
  #read() {
    this.#reading ??= this.#readAgain().finally(() => {
      this.#reading = null;
    });
    return this.#reading;
  }

  async #readAgain() {
    const stored = await this.s3.get(KEY, {unless: this.#etag});
    if (stored === undefined) return this.#queue;
    if (stored === null) this.#take(EMPTY, null);
    else this.#take(decode(stored.text), stored.etag);
    return this.#queue;
  }

  #take(queue, etag) {
    this.#queue = queue;
    this.#etag = etag;
    this.#rows = null;
  }

  async #all() {
    const queue = await this.#read();
    this.#rows ??= queue.tasks.filter(isRecord).map(({task}) => rowOf(task));
    return this.#rows;
  }

  // --- reading

  async survey() {
    return {rows: await this.#all(), lanes: null, exact: true, remarks: []};
  }

  /** The result of readStats. */
  stats() {
    return readStats(this.notes, this.now());
  }

  async page(filter) {
    const rows = (await this.#all()).filter(matcher(filter)).sort(comparer(sorting(filter.sort), this.now()));
    const start = Number(filter.cursor ?? 0) || 0;
    const end = start + (filter.limit ?? 50);
    return {
      tasks: rows.slice(start, end).map((row) => rowView(row, this.now())),
      cursor: end < rows.length ? String(end) : null,
      total: rows.length,
    };
  }

  async #record(id) {
    return (await this.#read()).tasks.find((record) => isRecord(record) && record.task.id === id);
  }

  async task(id) {
    const record = await this.#record(id);
    return record ? this.#view(record.task) : null;
  }

  #view(task) {
    return filled(this.s3, task, taskView(task, this.now()));
  }

  async history(id) {
    const record = await this.#record(id);
    if (!record) return null;
    const present = await this.#view(record.task);
    const events = record.events.map(named).filter(isEvent);
    return history(present, events.sort((a, b) => compare(a.version, b.version)));
  }

  // --- writing

  /** Changes all tasks in one write. */
  async act(action, ids, progress) {
    let sum;
    let values; // of deleted tasks, removed after the write
    const wanted = new Set(ids);
    await this.#change((queue) => {
      sum = {done: 0, refused: []};
      values = [];
      const left = new Set(wanted);
      const tasks = queue.tasks.flatMap((record) => {
        if (!isRecord(record) || !left.delete(record.task.id)) return [record];
        const task = whole(record.task);
        if (!ACTIONS[action].from.includes(task.status)) {
          sum.refused.push({id: task.id, why: refusal(task, action)});
          return [record];
        }
        sum.done += 1;
        if (action !== 'delete') return [grown(record, apply(task, action, this.now()))];
        values.push(...referredBy(task));
        return [];
      });
      for (const id of left) sum.refused.push({id, why: 'there is no such task'});
      return sum.done ? {...queue, tasks} : null;
    });
    await Promise.all(values.map((key) => this.s3.delete(key).catch(() => {}))); // `repair` removes the rest
    progress(sum.done);
    return sum;
  }

  /** Writes the result of `how`, and repeats this after a conflict. null means nothing to write. */
  async #change(how) {
    for (let attempt = 1; ; attempt += 1) {
      const queue = await this.#readAgain();
      const changed = how(queue);
      if (changed === null) return;
      const write = newWriteId();
      const next = {...changed, version: queue.version + 1, writes: [...queue.writes, write].slice(-MAX_WRITES)};
      try {
        const asOurs = (stored) => isOurs(stored, write, next.version);
        const etag = await putDocument(this.s3, KEY, sealed(JSON.stringify(next)), {over: this.#etag, isOurs: asOurs});
        this.#take(next, etag);
        return;
      } catch (error) {
        if (error.code !== 'conflict' || attempt === MAX_ATTEMPTS) throw error;
      }
      if (attempt % SIGNAL_INTERVAL === 1) await this.s3.put(SIGNAL, newWriteId()).catch(() => {}); // the next signal is enough
      await new Promise((go) => setTimeout(go, MAX_DELAY * Math.random()));
    }
  }
}

/** A stored event, which is a list, as an object. */
function named([version, at, status, attempt, failures, available_at, worker_id, error, log = null]) {
  return {version, at, status, attempt, failures, available_at, worker_id, error, log};
}

function isRecord(record) {
  return isTask(record?.task) && Array.isArray(record.events);
}

function decode(text) {
  const queue = text ? unpacked(text) : EMPTY;
  if ((queue.since || queue.format) > FORMAT) throw new StoreError('unreadable', `${KEY} has a format that this page does not support`);
  return {...EMPTY, ...queue};
}

function unpacked(text) {
  try {
    return parsed(text);
  } catch (error) {
    throw new StoreError('unreadable', `${KEY} is damaged: ${error.message}; a worker continues with the intact part`);
  }
}

function isOurs(text, write, version) {
  try {
    const stored = decode(text);
    if (stored.writes.includes(write)) return true;
    return stored.version < version + MAX_WRITES ? false : null;
  } catch {
    return null;
  }
}

function grown(record, task) {
  const {version, at, status, attempt, failures, available_at, worker_id, error} = eventOf(task);
  const step = [version, at, status, attempt, failures, available_at, worker_id, error];
  return {...record, task, events: [...record.events, step].slice(-MAX_EVENTS)};
}

function isRegistration(note) {
  return note.name.startsWith('workers/');
}

/** Notes whose names start with `prefix` and sort after `after`, converted by `as`. */
function found(notes, prefix, {after, isWanted, as}) {
  const named = notes.filter(({name}) => name.startsWith(prefix) && name > after && isWanted(name));
  return named.map((note) => ({name: note.name, value: as(valueOf(note))})).filter(({value}) => value !== null);
}

function valueOf(note) {
  try {
    return JSON.parse(textOf(note.data));
  } catch {
    return null;
  }
}

function withNote(queue, name, value) {
  const others = queue.notes.filter((note) => note.name !== name);
  return {...queue, notes: [...others, {name, data: base64Of(JSON.stringify(value)), version: newWriteId()}]};
}
