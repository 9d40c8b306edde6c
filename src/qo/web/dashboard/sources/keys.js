// Names of objects in the layout `tasks`, as in qo/engines/object_per_task/keys.py. A test compares the two.

import {dueAt} from './rules.js';
import {sha256} from './sigv4.js';

export const SHARDS = [...'0123456789abcdef'];
const MEDIUM = 6; // the priority of early entries, which do not contain it
const AGEING = 200; // the default; entries with another ageing contain the due time

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const TAIL = '([0-9a-f]{12})_([0-9a-f]{16})_([0-9a-f]{8})_([0-9a-f]{32})(?:_([0-9]))?';
const READY = new RegExp(`^ready/[0-9a-f]/[0-9]{9}/([0-9a-f]{16})_${TAIL}(?:_([0-9a-f]{16}))?$`);
const LATER = new RegExp(`^ready/later/[0-9]{9}/([0-9a-f]{16})_([0-9a-f]{16})_${TAIL}$`);
const LEASE = new RegExp(`^leases/[0-9a-f]/[0-9]{9}/([0-9a-f]{16})_([0-9a-f]{12})_${TAIL}$`);

export function isId(id) {
  return ID.test(id);
}

export function taskKey(id) {
  return `tasks/${id[0]}/${id}.json`;
}

export function taskIdIn(key) {
  const id = key.slice('tasks/0/'.length, -'.json'.length);
  return isId(id) && key === taskKey(id) ? id : null;
}

export async function laneHash(task) {
  return digest([task.queue, task.type, ...task.needs].join(' '));
}

/** The key of the index entry for a task in this state, or null. */
export async function indexKey(task) {
  const tail = async () => {
    const version = task.version.toString(16).padStart(8, '0');
    return `${await laneHash(task)}_${hexOf(task.created_at)}_${version}_${task.id.replaceAll('-', '')}_${task.priority}`;
  };
  if (task.status === 'pending') {
    const at = task.available_at;
    if (at > task.updated_at) return `ready/later/${minute(at)}/${hexOf(at)}_${hexOf(task.rank)}_${await tail()}`;
    const due = dueAt(task) === task.rank - task.priority * AGEING ? '' : `_${hexOf(dueAt(task))}`;
    return `ready/${task.id[0]}/${minute(task.rank)}/${hexOf(task.rank)}_${await tail()}${due}`;
  }
  if (task.status === 'running') {
    const at = task.lease_expires_at ?? 0;
    const holder = await digest(`lease ${task.lease_id ?? 'None'}`);
    return `leases/${task.id[0]}/${minute(at)}/${hexOf(at)}_${holder}_${await tail()}`;
  }
  return null;
}

/** The parsed key of an index entry, or null: {key, status, at, rank, lane, created_at, version, id, priority} */
export function entryOf(key) {
  let found = READY.exec(key);
  if (found) return entry(key, 'pending', found.slice(2), {rank: numberOf(found[1])});
  found = LATER.exec(key);
  if (found) return entry(key, 'pending', found.slice(3), {at: numberOf(found[1]), rank: numberOf(found[2])});
  found = LEASE.exec(key);
  if (found) return entry(key, 'running', found.slice(3), {at: numberOf(found[1])});
  return null;
}

function entry(key, status, [lane, created, version, digits, priority = MEDIUM], {at = 0, rank = 0}) {
  const id = [digits.slice(0, 8), digits.slice(8, 12), digits.slice(12, 16), digits.slice(16, 20), digits.slice(20)];
  return {
    key,
    status,
    at,
    rank,
    lane,
    created_at: numberOf(created),
    version: parseInt(version, 16),
    id: id.join('-'),
    priority: Number(priority),
  };
}

/** The creation time in an id. It is random in ids derived from an idempotency key. */
export function timeIn(id) {
  return parseInt(id.slice(1, 8) + id.slice(9, 13), 16) / 1000;
}

export function hexOf(number) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, Math.max(0, number) + 0);
  return view.getBigUint64(0).toString(16).padStart(16, '0');
}

export function numberOf(digits) {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, BigInt(`0x${digits}`));
  return view.getFloat64(0);
}

/** Whole minutes, rounded down as in Python: a plain quotient can round up to the next minute. */
export function minute(instant) {
  const at = Math.max(0, instant);
  const rest = at % 60;
  return String(Math.round((at - rest) / 60)).padStart(9, '0');
}

async function digest(text) {
  return (await sha256(text)).slice(0, 12);
}
