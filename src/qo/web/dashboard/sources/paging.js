// One page of tasks from the shelf. Tasks are looked at in order and read as needed, a bounded number for each page: a
// page may come back short, with a cursor that goes on behind the last task looked at.

import {isId} from './keys.js';
import {compare, comparer, listed, matcher, rowView, sorting} from './rows.js';

const BUDGET = 400; // tasks read for one page
const CHUNK = 48; // tasks read together
const WINDOW = 400; // the newest tasks, among which sorts are done that no listing helps with

export async function page(shelf, alive, filter, now) {
  await shelf.list();
  const {ids, total} = await candidates(shelf, alive, filter);
  const {field, sign} = sorting(filter.sort);
  const limit = filter.limit ?? 50;
  if (field !== 'created_at' && field !== 'updated_at') return sorted(shelf, ids, filter, limit, now);
  const at = field === 'updated_at' ? (id) => shelf.updatedAt(id) : (id) => shelf.createdAt(id);
  const places = ids.map((id) => ({id, at: at(id)}));
  const order = (a, b) => sign * (compare(a.at, b.at) || compare(a.id, b.id));
  places.sort(order);
  const start = filter.cursor ? places.findIndex((place) => order(place, placeIn(filter.cursor)) > 0) : 0;
  return walk(shelf, start < 0 ? [] : places.slice(start), filter, {limit, now, total});
}

/** Which tasks to look at: all of the shard; only those the index knows to be alive, if it is those that are wanted. */
async function candidates(shelf, alive, filter) {
  let ids = [...shelf.keys.keys()];
  const named = (filter.text ?? '').trim().toLowerCase();
  if (isId(named)) return {ids: ids.filter((id) => id === named), total: null}; // a pasted id: that task
  if (filter.shard) ids = ids.filter((id) => id.startsWith(filter.shard));
  const statuses = listed(filter.status);
  const live = statuses.length && statuses.every((status) => status === 'pending' || status === 'running');
  const unread = ids.reduce((sum, id) => sum + (shelf.row(id) === undefined), 0);
  if (!live || unread <= BUDGET) return {ids, total: null};
  await alive.read();
  if (!alive.isComplete) return {ids, total: null};
  const found = ids.filter((id) => fits(alive, alive.entries.get(id), filter, statuses));
  const exact = !filter.text && !filter.worker && (filter.priority ?? '') === '';
  return {ids: found, total: exact ? found.length : null};
}

function fits(alive, entry, filter, statuses) {
  if (!entry || !statuses.includes(entry.status)) return false;
  const {queue, type} = alive.names(entry);
  const [queues, types] = [listed(filter.queue), listed(filter.type)];
  return (!queues.length || queues.includes(queue)) && (!types.length || types.includes(type));
}

async function walk(shelf, places, filter, {limit, now, total}) {
  const matches = matcher(filter);
  const rows = [];
  let [looked, read] = [0, 0];
  while (looked < places.length && rows.length < limit && read < BUDGET) {
    const chunk = places.slice(looked, looked + Math.max(CHUNK, limit - rows.length));
    read += await shelf.load(chunk.map(({id}) => id), BUDGET - read);
    for (const {id} of chunk) {
      if (rows.length === limit || shelf.row(id) === undefined) break;
      looked += 1;
      const row = shelf.row(id);
      if (row && matches(row)) rows.push(row);
    }
    if (shelf.row(chunk[0].id) === undefined) break; // it changes as fast as it is read
  }
  const last = places[looked - 1];
  const more = looked < places.length && last !== undefined;
  return {
    tasks: rows.map((row) => rowView(row, now)),
    cursor: more ? `${last.at}~${last.id}` : null,
    total: total ?? (!filter.cursor && !more ? rows.length : null),
    ...(filter.text ? {searched: looked} : {}),
  };
}

/** By what only a task itself tells: among the newest. The cursor is how many came before. */
async function sorted(shelf, ids, filter, limit, now) {
  const newest = [...ids].sort((a, b) => shelf.createdAt(b) - shelf.createdAt(a)).slice(0, WINDOW);
  await shelf.load(newest, WINDOW);
  const matches = matcher(filter);
  const rows = newest.map((id) => shelf.row(id)).filter((row) => row && matches(row));
  rows.sort(comparer(sorting(filter.sort)));
  const start = Number(filter.cursor ?? 0) || 0;
  const end = start + limit;
  return {
    tasks: rows.slice(start, end).map((row) => rowView(row, now)),
    cursor: end < rows.length ? String(end) : null,
    total: newest.length === ids.length ? rows.length : null,
    window: newest.length,
  };
}

function placeIn(cursor) {
  const [at, id] = cursor.split('~');
  return {at: Number(at), id};
}
