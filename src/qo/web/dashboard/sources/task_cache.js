// Task objects of the layout `tasks`: which there are, by one listing, and what was read of them. A listing tells each
// object's ETag, so that only what changed is read again, and a view costs a bounded number of requests.

import {SHARDS, taskIdIn, taskKey, timeIn} from './keys.js';
import {decode, isAlive} from './documents.js';
import {ReadInterval} from './read_interval.js';
import {rowOf} from './rows.js';
import {whole} from './rules.js';

const PAGES = 12; // of 1,000 keys, a shard: beyond that a listing is incomplete, and says so
const EPOCH = 1.6e9; // no task is older; ids made from idempotency keys tell any time

export class TaskCache {
  #interval = new ReadInterval();
  #listing = null;

  constructor(s3) {
    this.s3 = s3;
    this.keys = new Map(); // id: {etag, at}
    this.rows = new Map(); // id: row, or {etag, gone: true}
    this.isComplete = false;
  }

  /** Those who ask at the same time share one listing. */
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
    const shards = await Promise.all(SHARDS.map((shard) => this.s3.listAll(`tasks/${shard}/`, {pages: PAGES})));
    return {objects: shards.flatMap((page) => page.objects), isComplete: shards.every((page) => !page.next)};
  }

  /** What is known of a task as it is now: a row, undefined if it has to be read, null if it is gone. */
  row(id) {
    const row = this.rows.get(id);
    if (row === undefined || row.etag !== this.keys.get(id)?.etag) return undefined;
    return row.gone ? null : row;
  }

  /** Read those not known, at most so many; how many were read. */
  async load(ids, most) {
    const unknown = ids.filter((id) => this.row(id) === undefined).slice(0, most);
    await Promise.all(unknown.map((id) => this.#load(id)));
    return unknown.length;
  }

  async #load(id) {
    const stored = await this.s3.get(taskKey(id));
    this.keep(id, stored === null ? null : decode(stored.text, id), stored?.etag ?? this.keys.get(id)?.etag);
  }

  /** What was read or written just now. */
  keep(id, document, etag) {
    if (document !== null && isAlive(document)) this.rows.set(id, rowOf(whole(document.task), etag));
    else this.rows.set(id, {etag, gone: true}); // a tombstone, or not one of ours
    this.keys.set(id, {etag, at: document?.task.updated_at ?? this.keys.get(id)?.at ?? 0});
  }

  /** When it was created: exact once read. */
  createdAt(id) {
    const row = this.rows.get(id);
    if (row?.created_at !== undefined) return row.created_at;
    const told = timeIn(id);
    const {at} = this.keys.get(id);
    return told > EPOCH && told <= at + 60 ? told : at;
  }

  updatedAt(id) {
    return this.keys.get(id).at;
  }
}
