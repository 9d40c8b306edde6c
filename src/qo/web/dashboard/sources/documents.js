// A task's object in the layout `tasks`: the same as qo/engines/object_per_task/task_document.py. What is not understood is kept.

import {parsed} from './checksum.js';
import {eventOf, newWriteId} from './rules.js';
import {isEvent, isTask} from './shapes.js';

const REMEMBERED = 8; // write ids kept: so many others may write before we read back
const BURIALS = 2; // writes that do not count in the task's own version
const MOST_EVENTS = 64;
const MOST_BYTES = 64 * 1024; // of events: errors can be long

/** null: not a task's document; left alone. */
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

/** The next version. */
export function grown(document, task) {
  return {...document, task, writes: signed(document), events: bounded([...document.events, eventOf(task)])};
}

/** Forgotten, but its place is not free for a late write to take; the sweeper clears it away after an hour. */
export function as_tombstone(document) {
  return {...document, writes: signed(document), tombstone: 'deleted'};
}

/** Whether our write is part of what is stored; null if it may have been and is forgotten. */
export function isOurs(storedText, ours) {
  const stored = decode(storedText, ours.task.id);
  if (stored === null) return null;
  if (stored.writes.includes(ours.writes.at(-1))) return true;
  const passed = stored.task.version - ours.task.version;
  return stored.nonce === ours.nonce && passed < REMEMBERED - BURIALS ? false : null;
}

function signed(document) {
  return [...document.writes, newWriteId()].slice(-REMEMBERED);
}

function bounded(events) {
  let size = 0;
  for (let kept = 0; kept < events.length; kept += 1) {
    size += 200 + (events.at(-1 - kept).error ?? '').length;
    if (kept === MOST_EVENTS || (kept && size > MOST_BYTES)) return events.slice(-kept);
  }
  return events;
}
