// A cache of the tasks of the layout `tasks`. A listing returns the ETag of each object, so that only changed objects are
// read again, and a view costs a bounded number of requests.

import {SHARDS, taskIdIn, taskKey, timeIn} from './keys.js';
import {decode, isAlive} from './documents.js';
import {ReadInterval} from './read_interval.js';
import {rowOf} from './rows.js';
import {whole} from './rules.js';

const MAX_PAGES = 12; // of 1,000 keys per shard; beyond that the listing is incomplete
const MIN_TIME = 1.6e9; // no task is older; ids derived from idempotency keys contain a random time

export class TaskCache {
  #interval = new ReadInterval();
  #listing = null;

  constructor(s3) {
    this.s3 = s3;
    this.keys = new Map(); // id: {etag, at}
    this.rows = new Map(); // id: row, or {etag, gone: true}
    this.isComplete = false;
  }

  /** Concurrent callers share one listing. */
  list() {
    if (!this.#interval.isOver) return Promise.resolve();
    this.#listing ??= this.#interval.measure(() => this.#list()).finally(() => {
      this.#listing = null;
    });
    return this.#listing;
  }

  async #list() {
    const {objects, isComplete} = await this.#objects();
    this.isComplete = isComplete;
    this.keys = new Map();
    for (const {key, etag, at} of objects) {
      const id = taskIdIn(key);
      if (id !== null) this.keys.set(id, {etag, at});
    }
    for (const id of this.rows.keys()) if (!this.keys.has(id)) this.rows.delete(id);
  }

  async #objects() {
    const first = await this.s3.list('tasks/');
    if (!first.next) return {objects: first.objects, isComplete: true};
    const shards = await Promise.all(SHARDS.map((shard) => this.s3.listAll(`tasks/${shard}/`, {pages: MAX_PAGES})));
    return {objects: shards.flatMap((page) => page.objects), isComplete: shards.every((page) => !page.next)};
  }

  /** The current row of a task, undefined if it must be read, null if the task is deleted. */
  row(id) {
    const row = this.rows.get(id);
    if (row === undefined || row.etag !== this.keys.get(id)?.etag) return undefined;
    return row.gone ? null : row;
  }

  /** Reads unknown tasks, up to `most`. Returns how many were read. */
  async load(ids, most) {
    const unknown = ids.filter((id) => this.row(id) === undefined).slice(0, most);
    await Promise.all(unknown.map((id) => this.#load(id)));
    return unknown.length;
  }

  async #load(id) {
    const stored = await this.s3.get(taskKey(id));
    this.keep(id, stored === null ? null : decode(stored.text, id), stored?.etag ?? this.keys.get(id)?.etag);
  }

  /** Stores a document that was just read or written. */
  keep(id, document, etag) {
    if (document !== null && isAlive(document)) this.rows.set(id, rowOf(whole(document.task), etag));
    else this.rows.set(id, {etag, gone: true}); // a tombstone or not a task
    this.keys.set(id, {etag, at: document?.task.updated_at ?? this.keys.get(id)?.at ?? 0});
  }

  /** The creation time; exact once the task has been read. */
  createdAt(id) {
    const row = this.rows.get(id);
    if (row?.created_at !== undefined) return row.created_at;
    const told = timeIn(id);
    const {at} = this.keys.get(id);
    return told > MIN_TIME && told <= at + 60 ? told : at;
  }

  updatedAt(id) {
    return this.keys.get(id).at;
  }
}
