// The layout `tasks`, one object per task. Reads use listings and the index. Writes change the index first, then the task,
// and clean up last, as in qo/engines/object_per_task/task_changes.py.

import {parsed, sealed} from './checksum.js';
import {LiveIndex} from './live_index.js';
import {asTombstone, decode, grown, isAlive, isOurs} from './documents.js';
import {indexKey, isId, taskKey} from './keys.js';
import {filled, referredBy} from './large_values.js';
import {NoteObjects} from './note_objects.js';
import {putDocument} from './own_writes.js';
import {Paging} from './paging.js';
import {history} from './history.js';
import {ReadInterval} from './read_interval.js';
import {ACTIONS, FINISHED, apply, refusal, whole} from './rules.js';
import {isLane} from './shapes.js';
import {TaskCache} from './task_cache.js';
import {readStats} from './stats.js';
import {StoredFormat} from './stored_format.js';
import {taskView} from './values.js';

const MAX_READS = 400; // tasks read for one overview
const MAX_ATTEMPTS = 20;
const MAX_VERSIONS = 100; // of one task
const MAX_CONCURRENT = 8; // tasks changed concurrently
const ROLLUP = 'stats/finished.json'; // counts of finished tasks, by a worker or monitor

export class TasksLayout {
  #stats;
  #statsInterval = new ReadInterval();

  constructor(s3) {
    this.s3 = s3;
    this.taskCache = new TaskCache(s3);
    this.liveIndex = new LiveIndex(s3);
    this.paging = new Paging(this.taskCache, this.liveIndex);
    this.format = new StoredFormat(s3);
    this.notes = new NoteObjects(s3, this.format);
    this.can = {shards: true, versions: true};
  }

  now() {
    return this.s3.clock.now();
  }

  // --- reading

  /** {rows, lanes, exact, remarks}: all tasks if there are few, otherwise the latest ones and counts of all. */
  async survey() {
    await this.format.check();
    await this.taskCache.list();
    const {taskCache} = this;
    const ids = [...taskCache.keys.keys()].sort((a, b) => taskCache.updatedAt(b) - taskCache.updatedAt(a));
    await taskCache.load(ids, MAX_READS);
    const rows = ids.map((id) => taskCache.row(id)).filter(Boolean);
    const unread = ids.filter((id) => taskCache.row(id) === undefined).length;
    if (!unread && taskCache.isComplete) return {rows, lanes: null, exact: true, remarks: []};
    await this.liveIndex.read();
    return {rows, ...(await this.#counted(ids, rows)), exact: false};
  }

  /** Counts of unfinished tasks from the index, of finished tasks from the rollup or from those read so far. */
  async #counted(ids, rows) {
    const {entries} = this.liveIndex;
    const remarks = [];
    if (!this.taskCache.isComplete || !this.liveIndex.isComplete) remarks.push('There are more tasks than this page can list.');
    const rollup = await this.#rollup();
    if (rollup) {
      remarks.push(`Finished tasks were counted at ${new Date(rollup.counted_at * 1000).toISOString()}.`);
      return {lanes: [...this.liveIndex.lanes(), ...rollup.lanes], remarks};
    }
    const finished = rows.filter((row) => FINISHED.has(row.status) && !entries.has(row.id));
    const unread = ids.filter((id) => !entries.has(id) && this.taskCache.row(id) === undefined).length;
    if (unread) remarks.push(`${unread} finished tasks have not been read yet and are not counted.`);
    return {lanes: [...this.liveIndex.lanes(), ...finished.map((row) => [row.queue, row.type, row.status, row.priority, 1])], remarks};
  }

  /** The result of readStats. */
  async stats() {
    if (this.#statsInterval.isOver) {
      this.#stats = await this.#statsInterval.measure(() => readStats(this.notes, this.now()));
    }
    return this.#stats;
  }

  async #rollup() {
    try {
      const {counted_at, lanes} = parsed((await this.s3.get(ROLLUP))?.text ?? 'null') ?? {};
      return lanes?.every(isLane) ? {counted_at, lanes} : null;
    } catch (error) {
      if (error.code) throw error;
      return null; // not a valid rollup
    }
  }

  page(filter) {
    return this.paging.page(filter, this.now());
  }

  async task(id) {
    const kept = await this.#read(id);
    return kept && this.#view(kept.document.task);
  }

  #view(task) {
    return filled(this.s3, task, taskView(task, this.now()));
  }

  /** All transitions, with the task at that time if the store keeps versions. */
  async history(id) {
    const kept = await this.#read(id);
    if (!kept) return null;
    const events = new Map();
    const tasks = new Map();
    const nonce = kept.document.nonce;
    for (const document of [...(await this.#versions(id)).reverse(), kept.document]) {
      if (document.nonce !== nonce) continue; // of an earlier task with the same id
      for (const event of document.events) events.set(event.version, event);
      tasks.set(document.task.version, taskView(document.task, document.task.updated_at));
    }
    const ordered = [...events.values()].sort((a, b) => a.version - b.version);
    return history(await this.#view(kept.document.task), ordered, tasks);
  }

  /** Stored versions, newest first; empty if the store keeps none or denies access. */
  async #versions(id) {
    let versions = [];
    try {
      versions = await this.s3.versions(taskKey(id), {most: MAX_VERSIONS});
    } catch (error) {
      if (!['not_allowed', 'busy'].includes(error.code)) throw error;
    }
    const kept = versions.filter((version) => version.id !== 'null');
    const read = await Promise.all(kept.map((version) => this.s3.get(taskKey(id), {versionId: version.id})));
    return read.map((stored) => stored && decode(stored.text, id)).filter(Boolean);
  }

  async #read(id) {
    const stored = isId(id) ? await this.s3.get(taskKey(id)) : null;
    const document = stored && decode(stored.text, id);
    if (!document || !isAlive(document)) return null;
    return {document: {...document, task: whole(document.task)}, etag: stored.etag};
  }

  // --- writing

  async act(action, ids, progress) {
    await this.format.check();
    const sum = {done: 0, refused: []};
    const waiting = [...ids];
    const work = async () => {
      for (let id = waiting.shift(); id !== undefined; id = waiting.shift()) {
        const why = await this.#change(id, action).catch((error) => error.message);
        if (why) sum.refused.push({id, why});
        else sum.done += 1;
        progress(sum.done);
      }
    };
    await Promise.all(Array.from({length: MAX_CONCURRENT}, work));
    this.liveIndex.forget();
    return sum;
  }

  /** Returns the reason if the task was not changed. */
  async #change(id, action) {
    const unused = []; // index entries of lost writes
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt += 1) {
      const kept = await this.#read(id);
      if (!kept) return 'there is no such task';
      const {task} = kept.document;
      if (!ACTIONS[action].from.includes(task.status)) return refusal(task, action);
      const changed = action === 'delete' ? null : apply(task, action, this.now());
      if (await this.#write(kept, changed, unused)) return undefined;
    }
    return 'other processes keep changing the task; try again';
  }

  /** Returns false after a conflict. The index entry for the new state is unused then. */
  async #write(kept, changed, unused) {
    const {task} = kept.document;
    const next = changed ? grown(kept.document, changed) : asTombstone(kept.document);
    const former = await indexKey(task);
    const needed = changed && (await indexKey(changed));
    if (needed && needed !== former) await this.s3.put(needed, laneOf(task));
    try {
      const asOurs = (stored) => isOurs(stored, next);
      const text = sealed(JSON.stringify(next));
      const etag = await putDocument(this.s3, taskKey(task.id), text, {over: kept.etag, isOurs: asOurs});
      this.taskCache.keep(task.id, next, etag);
    } catch (error) {
      if (error.code !== 'conflict') throw error;
      if (needed) unused.push(needed);
      return false;
    }
    const values = changed ? [] : referredBy(task);
    const stale = [former, ...unused, ...values].filter((key) => key && key !== needed);
    // A remaining entry is harmless; the next process that reads it removes it.
    await Promise.all(stale.map((key) => this.s3.delete(key).catch(() => {})));
    return true;
  }
}

/** The content of an index entry: its lane. */
function laneOf({queue, type, needs}) {
  return JSON.stringify({queue, type, needs});
}
