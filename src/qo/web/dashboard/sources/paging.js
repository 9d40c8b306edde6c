// One page of tasks from the cache. Tasks are read in order, a bounded number per page. A page can be short and still have
// a cursor, which continues after the last task that was read.

import {isId} from './keys.js';
import {compare, comparer, listed, matcher, rowView, sorting} from './rows.js';

const MAX_READS = 400; // tasks read for one page
const BATCH_SIZE = 48; // tasks read together
const WINDOW = 400; // newest tasks that are sorted by fields that the listing does not contain
const MAX_ORDERS = 8; // kept for further pages

export class Paging {
  #orders = new Map(); // by name; fixed, because reading a task corrects its position, which must not change between pages
  #named = 0;

  constructor(taskCache, liveIndex) {
    this.taskCache = taskCache;
    this.liveIndex = liveIndex;
  }

  async page(filter, now) {
    await this.taskCache.list();
    const {field} = sorting(filter.sort);
    if (field !== 'created_at' && field !== 'updated_at') return this.#sorted(filter, now);
    const [name, offset] = (filter.cursor ?? '').split(':');
    const order = this.#orders.get(name) ?? (await this.#order(filter, field));
    this.#keep(order);
    return this.#walk(order, Number(offset) || 0, filter, now);
  }

  /** Orders by data of the listing: the time in an id, or the last change of an object. */
  async #order(filter, field) {
    const {taskCache} = this;
    const {ids, total} = await this.#candidates(filter);
    const at = field === 'updated_at' ? (id) => taskCache.updatedAt(id) : (id) => taskCache.createdAt(id);
    const places = ids.map((id) => ({id, at: at(id)}));
    places.sort((a, b) => compare(b.at, a.at) || compare(b.id, a.id));
    this.#named += 1;
    return {name: String(this.#named), ids: places.map(({id}) => id), total};
  }

  #keep(order) {
    this.#orders.delete(order.name);
    this.#orders.set(order.name, order);
    if (this.#orders.size > MAX_ORDERS) this.#orders.delete(this.#orders.keys().next().value);
  }

  /** The tasks to read: all of the shard, or only the unfinished ones of the index if the filter asks for them. */
  async #candidates(filter) {
    const {taskCache, liveIndex} = this;
    let ids = [...taskCache.keys.keys()];
    const named = (filter.text ?? '').trim().toLowerCase();
    if (isId(named)) return {ids: ids.filter((id) => id === named), total: null}; // the text is an id
    if (filter.shard) ids = ids.filter((id) => id.startsWith(filter.shard));
    const statuses = listed(filter.status);
    const live = statuses.length && statuses.every((status) => status === 'pending' || status === 'running');
    const unread = ids.reduce((sum, id) => sum + (taskCache.row(id) === undefined), 0);
    if (!live || unread <= MAX_READS) return {ids, total: null};
    await liveIndex.read();
    if (!liveIndex.isComplete) return {ids, total: null};
    const found = ids.filter((id) => fits(liveIndex, liveIndex.entries.get(id), filter, statuses));
    const exact = !filter.text && !filter.worker && !filter.batch && (filter.priority ?? '') === '';
    return {ids: found, total: exact ? found.length : null};
  }

  async #walk(order, start, filter, now) {
    const {taskCache} = this;
    const limit = filter.limit ?? 50;
    const matches = matcher(filter);
    const ids = order.ids.slice(start);
    const rows = [];
    let [looked, read] = [0, 0];
    while (looked < ids.length && rows.length < limit && read < MAX_READS) {
      const chunk = ids.slice(looked, looked + Math.max(BATCH_SIZE, limit - rows.length)).filter((id) => taskCache.keys.has(id));
      read += await taskCache.load(chunk, MAX_READS - read);
      const before = looked;
      while (looked < ids.length && rows.length < limit) {
        const row = taskCache.keys.has(ids[looked]) ? taskCache.row(ids[looked]) : null;
        if (row === undefined) break; // not read yet
        looked += 1;
        if (row && matches(row)) rows.push(row);
      }
      if (looked === before) break; // the tasks change as fast as they are read
    }
    const more = looked < ids.length;
    rows.sort(comparer(sorting(filter.sort), now));
    return {
      tasks: rows.map((row) => rowView(row, now)),
      cursor: more ? `${order.name}:${start + looked}` : null,
      total: order.total ?? (start === 0 && !more ? rows.length : null),
      ...(filter.text ? {searched: looked} : {}),
    };
  }

  /** Sorts the newest tasks by a field of the task. The cursor is an offset. */
  async #sorted(filter, now) {
    const {taskCache} = this;
    const {ids} = await this.#candidates(filter);
    const newest = ids.sort((a, b) => taskCache.createdAt(b) - taskCache.createdAt(a)).slice(0, WINDOW);
    await taskCache.load(newest, WINDOW);
    const matches = matcher(filter);
    const rows = newest.map((id) => taskCache.row(id)).filter((row) => row && matches(row));
    rows.sort(comparer(sorting(filter.sort), now));
    const start = Number(filter.cursor ?? 0) || 0;
    const end = start + (filter.limit ?? 50);
    const isAll = newest.length === ids.length;
    return {
      tasks: rows.slice(start, end).map((row) => rowView(row, now)),
      cursor: end < rows.length ? String(end) : null,
      total: isAll ? rows.length : null,
      ...(isAll ? {} : {window: newest.length}),
    };
  }
}

function fits(liveIndex, entry, filter, statuses) {
  if (!entry || !statuses.includes(entry.status)) return false;
  const {queue, type} = liveIndex.names(entry);
  const [queues, types] = [listed(filter.queue), listed(filter.type)];
  return (!queues.length || queues.includes(queue)) && (!types.length || types.includes(type));
}
