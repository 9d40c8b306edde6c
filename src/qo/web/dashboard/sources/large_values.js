// Large payloads and results are stored under data/, with a reference in the task, as in
// qo/engines/large_values/blobs.py.

import {crc32} from './checksum.js';
import {bytesOf, valueOfBytes} from './values.js';

const REFERENCE = '\u0001qo\u0001@';
const KEY = /^data\/([0-9a-f])\/(\1[0-9a-f]{7}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\/(payload|result)_([0-9a-f]{32})([0-9a-f]{32})?$/;
const MAX_SHOWN = 2 * 1024 * 1024; // bytes of a value that the page shows

/** The key in a reference, unchecked; null if the stored bytes are a value. */
function referred(base64) {
  const start = String.fromCharCode(...bytesOf(base64.slice(0, 8)).subarray(0, REFERENCE.length));
  if (start !== REFERENCE) return null;
  const [key] = String.fromCharCode(...bytesOf(base64).subarray(REFERENCE.length)).split('#'); // followed by a checksum
  return key;
}

/**
 * The key that a field of a task refers to; null if the field holds a value, or if the key does not belong to the task.
 * Anyone can write a task object, and deleting the task deletes what it refers to.
 */
function ownKey(task, field) {
  const [key, , owner, kind, first, second] = KEY.exec((task[field] && referred(task[field])) ?? '') ?? [];
  if (kind !== field || (kind === 'result' && second)) return null;
  const follower = second ? first : null; // a payload can belong to the task that follows its owner
  return task.id === owner || task.id.replaceAll('-', '') === follower ? key : null;
}

/** Whether the bytes match the checksum of the reference. Early references have none. */
function isIntact(base64, bytes) {
  const [, checksum] = String.fromCharCode(...bytesOf(base64)).split('#');
  return !checksum || checksum === crc32(bytes).toString(16).padStart(8, '0');
}

/** Keys of everything a task refers to. */
export function referredBy(task) {
  return ['payload', 'result'].map((field) => ownKey(task, field)).filter(Boolean);
}

/** The view of the task with its large values. Missing or very large values are replaced by a note. */
export async function filled(s3, task, view) {
  const whole = {...view};
  for (const field of ['payload', 'result']) {
    const named = task[field] ? referred(task[field]) : null;
    if (named === null) continue;
    const key = ownKey(task, field);
    whole[field] = key === null ? {$missing: named} : await fetched(s3, key, task[field]);
  }
  return whole;
}

async function fetched(s3, key, reference) {
  const blob = await s3.getBytes(key, {most: MAX_SHOWN});
  if (blob === null) return {$missing: key};
  if (blob.bytes !== null && !isIntact(reference, blob.bytes)) return {$damaged: key};
  return blob.bytes === null ? {$large: key, bytes: blob.size} : valueOfBytes(blob.bytes);
}
