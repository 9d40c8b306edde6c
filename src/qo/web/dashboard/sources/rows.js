// Tasks in listings: small and searchable, without payload, result and lease.

import {effectivePriority, effectiveRank, groupOf, needsOf, waitedUntil, whole} from './rules.js';
import {bytesOf, iso} from './values.js';

const MAX_SEARCHED = 2000; // bytes of a payload that a text search covers
const MAX_ERROR = 2000; // characters of an error that a row keeps

export function rowOf(stored, etag = '') {
  const {payload, result, lease_id: _, ...task} = whole(stored);
  const names = [task.id, task.type, task.queue, task.worker_id, task.idempotency_key, task.trace_id, ...needsOf(task.needs)];
  const said = [...names, beginning(payload), task.error];
  return {
    ...task,
    error: task.error?.length > MAX_ERROR ? `${task.error.slice(0, MAX_ERROR)}…` : task.error,
    etag,
    text: said.filter(Boolean).join('\n').toLowerCase(),
  };
}

function beginning(payload) {
  try {
    return new TextDecoder().decode(bytesOf(payload.slice(0, Math.ceil(MAX_SEARCHED / 3) * 4)));
  } catch {
    return '';
  }
}

export function rowView({text, etag, rank, ...row}, now) {
  return {
    ...row,
    needs: needsOf(row.needs),
    group: groupOf(row.needs),
    effective_priority: effectivePriority({...row, rank}, waitedUntil(row, now)),
    available_at: iso(row.available_at),
    lease_expires_at: iso(row.lease_expires_at),
    created_at: iso(row.created_at),
    updated_at: iso(row.updated_at),
    started_at: iso(row.started_at),
    completed_at: iso(row.completed_at),
    run_at: iso(row.run_at),
  };
}

/** A predicate for a filter of the views. Without a status, archived tasks do not match. */
export function matcher({status, type, queue, worker, batch, priority, text, shard}) {
  const statuses = listed(status);
  const [types, queues] = [listed(type), listed(queue)];
  const needle = (text ?? '').trim().toLowerCase();
  const level = priority === undefined || priority === null || priority === '' ? null : Number(priority);
  return (row) =>
    (statuses.length ? statuses.includes(row.status) : row.status !== 'archived')
    && (!types.length || types.includes(row.type))
    && (!queues.length || queues.includes(row.queue))
    && (!worker || row.worker_id === worker)
    && (!batch || row.batch === batch)
    && (level === null || row.priority === level)
    && (!shard || row.id.startsWith(shard))
    && (!needle || row.text.includes(needle));
}

/** One value or many, as a list. */
export function listed(value) {
  return [value ?? []].flat().filter((each) => each !== '' && each !== null);
}

const SORTS = {
  newest: {field: 'created_at', sign: -1},
  updated: {field: 'updated_at', sign: -1},
  rank: {field: 'rank', sign: 1},
  available: {field: 'available_at', sign: 1},
  failures: {field: 'failures', sign: -1},
  attempts: {field: 'attempt', sign: -1},
};

export function sorting(sort) {
  return SORTS[sort] ?? SORTS.newest;
}

/** The comparison function of a sort order; ties are broken by id. */
export function comparer({field, sign}, now) {
  const value = field === 'rank' ? (row) => effectiveRank(row, now) : (row) => row[field];
  return (one, other) => sign * (compare(value(one), value(other)) || compare(one.id, other.id));
}

export function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}
