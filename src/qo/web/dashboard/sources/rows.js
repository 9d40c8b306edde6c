// Tasks as a listing keeps them: small, searchable, without payload, result or lease.

import {whole} from './rules.js';
import {bytesOf, iso} from './values.js';
import {effectivePriority} from './rules.js';

const SEARCHED = 2000; // bytes of a payload that a search for text looks at
const ERROR = 2000; // characters of an error that a row keeps

export function rowOf(stored, etag = '') {
  const {payload, result, lease_id: _, ...task} = whole(stored);
  const said = [task.id, task.type, task.queue, task.worker_id, task.idempotency_key, task.error, beginning(payload)];
  return {
    ...task,
    error: task.error === null ? null : task.error.slice(0, ERROR),
    etag,
    text: said.filter(Boolean).join('\n').toLowerCase(),
  };
}

function beginning(payload) {
  try {
    return new TextDecoder().decode(bytesOf(payload.slice(0, Math.ceil(SEARCHED / 3) * 4)));
  } catch {
    return '';
  }
}

export function rowView({text, etag, rank, ...row}, now) {
  const until = row.status === 'pending' ? now : (row.started_at ?? row.available_at);
  return {
    ...row,
    effective_priority: effectivePriority(row.priority, row.available_at, rank, until),
    available_at: iso(row.available_at),
    lease_expires_at: iso(row.lease_expires_at),
    created_at: iso(row.created_at),
    updated_at: iso(row.updated_at),
    started_at: iso(row.started_at),
    completed_at: iso(row.completed_at),
  };
}

/** A filter as the pages give it, made ready to ask of many rows. Without a status, archived tasks are left out. */
export function matcher({status, type, queue, worker, priority, text, shard}) {
  const statuses = new Set([status ?? []].flat().filter(Boolean));
  const needle = (text ?? '').trim().toLowerCase();
  const level = priority === undefined || priority === null || priority === '' ? null : Number(priority);
  return (row) =>
    (statuses.size ? statuses.has(row.status) : row.status !== 'archived')
    && (!type || row.type === type)
    && (!queue || row.queue === queue)
    && (!worker || row.worker_id === worker)
    && (level === null || row.priority === level)
    && (!shard || row.id[0] === shard)
    && (!needle || row.text.includes(needle));
}

/** "-created_at" is newest first. */
export function sorting(sort) {
  const given = sort || '-created_at';
  const descending = given.startsWith('-');
  return {field: descending ? given.slice(1) : given, descending};
}

/** What comes first under a sort; ids tell equals apart. What a task lacks comes last. */
export function comparer({field, descending}) {
  const sign = descending ? -1 : 1;
  return (one, other) => {
    const [a, b] = [one[field], other[field]];
    const [missing, also] = [a === null || a === undefined, b === null || b === undefined];
    if (missing || also) return missing - also || compare(one.id, other.id) * sign;
    return compare(a, b) * sign || compare(one.id, other.id) * sign;
  };
}

export function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}
