// The object of a task in the layout `tasks`, as in qo/engines/object_per_task/task_store.py. Unknown fields are kept.

import {parsed} from './checksum.js';
import {eventOf, newWriteId} from './rules.js';
import {isEvent, isTask} from './shapes.js';

const MAX_WRITES = 8; // write ids kept, to recognise a write after this many further writes
const TOMBSTONE_WRITES = 2; // writes that do not change the version of the task
const MAX_EVENTS = 64;
const MAX_EVENT_BYTES = 64 * 1024; // of all events; errors can be long

/** The document, or null if it is not the document of the task. */
export function decode(text, id) {
  try {
    const document = parsed(text);
    const ours = isTask(document.task) && document.task.id === id && Array.isArray(document.writes);
    return ours && Array.isArray(document.events) && document.events.every(isEvent) ? document : null;
  } catch {
    return null;
  }
}

export function isAlive(document) {
  return !document.tombstone;
}

/** The document with the next version of the task. */
export function grown(document, task) {
  return {...document, task, writes: signed(document), events: bounded([...document.events, eventOf(task)])};
}

/** The tombstone of a deleted task, which blocks late writes. The sweep removes it after an hour. */
export function asTombstone(document) {
  return {...document, writes: signed(document), tombstone: 'deleted'};
}

/** Whether the stored document contains our write; null if that can no longer be known. */
export function isOurs(storedText, ours) {
  const stored = decode(storedText, ours.task.id);
  if (stored === null) return null;
  if (stored.writes.includes(ours.writes.at(-1))) return true;
  const passed = stored.task.version - ours.task.version;
  return stored.nonce === ours.nonce && passed < MAX_WRITES - TOMBSTONE_WRITES ? false : null;
}

function signed(document) {
  return [...document.writes, newWriteId()].slice(-MAX_WRITES);
}

function bounded(events) {
  let size = 0;
  for (let kept = 0; kept < events.length; kept += 1) {
    size += 200 + (events.at(-1 - kept).error ?? '').length + (events.at(-1 - kept).log ?? '').length;
    if (kept === MAX_EVENTS || (kept && size > MAX_EVENT_BYTES)) return events.slice(-kept);
  }
  return events;
}
