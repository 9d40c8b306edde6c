// Unfinished tasks from the index of the layout `tasks`, for queues that are too long to read every task. The names of
// index entries contain enough.

import {entryOf} from './keys.js';
import {ReadInterval} from './read_interval.js';
import {compare} from './rows.js';

const MAX_PAGES = 25; // of 1,000 entries, for each index
const MAX_LANES = 200; // unknown lanes read concurrently

export class LiveIndex {
  #interval = new ReadInterval();
  #lanes = new Map(); // hash: {queue, type, needs}

  constructor(s3) {
    this.s3 = s3;
    this.entries = new Map(); // newest entry by task id
    this.isComplete = false;
  }

  async read() {
    if (this.#interval.isOver) await this.#interval.measure(() => this.#read());
  }

  async #read() {
    const pages = await Promise.all(['ready/', 'leases/'].map((prefix) => this.s3.listAll(prefix, {pages: MAX_PAGES})));
    this.isComplete = pages.every((page) => !page.next);
    this.entries = new Map();
    for (const {key} of pages.flatMap((page) => page.objects)) {
      const entry = entryOf(key);
      const known = entry && this.entries.get(entry.id);
      if (entry && (!known || isYounger(entry, known))) this.entries.set(entry.id, entry);
    }
    await this.#learn();
  }

  async #learn() {
    const unknown = new Map();
    for (const entry of this.entries.values()) if (!this.#lanes.has(entry.lane)) unknown.set(entry.lane, entry);
    await Promise.all([...unknown.values()].slice(0, MAX_LANES).map((entry) => this.#lookUp(entry)));
  }

  async #lookUp(entry) {
    const stored = await this.s3.get(entry.key);
    try {
      const {queue, type} = JSON.parse(stored?.text ?? '');
      if (typeof queue === 'string' && typeof type === 'string') this.#lanes.set(entry.lane, {queue, type});
    } catch {
      // deleted meanwhile or invalid: the next read uses another entry
    }
  }

  names(entry) {
    return this.#lanes.get(entry.lane) ?? {queue: '?', type: '?'};
  }

  forget() {
    this.#interval.end();
  }

  /** [queue, type, status, priority, number] */
  lanes() {
    const sums = new Map();
    for (const entry of this.entries.values()) {
      const {queue, type} = this.names(entry);
      const name = JSON.stringify([queue, type, entry.status, entry.priority]);
      sums.set(name, (sums.get(name) ?? 0) + 1);
    }
    return [...sums].map(([name, number]) => [...JSON.parse(name), number]);
  }
}

function isYounger(one, other) {
  return (compare(one.created_at, other.created_at) || one.version - other.version) > 0;
}
