// Large payloads and results lie under data/, and the task holds a reference in their place: the same marks as in
// qo/engines/references.py.

import {crc32} from './checksum.js';
import {bytesOf, valueOfBytes} from './values.js';

const REFERENCE = '\u0001qo\u0001@';
const KEY = /^data\/[0-9a-f]\/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\/(payload|result)_([0-9a-f]{32}){1,2}$/;
const SHOWN = 2 * 1024 * 1024; // bytes of a value that a page can still show

/** The key a stored value refers to; null if it is a value itself. */
export function referred(base64) {
  const start = String.fromCharCode(...bytesOf(base64.slice(0, 8)).subarray(0, REFERENCE.length));
  if (start !== REFERENCE) return null;
  const [key] = String.fromCharCode(...bytesOf(base64).subarray(REFERENCE.length)).split('#'); // behind it, a checksum
  return KEY.test(key) ? key : null;
}

/** Whether these are the bytes that were put aside. References without a checksum were written at first. */
function isIntact(base64, bytes) {
  const [, checksum] = String.fromCharCode(...bytesOf(base64)).split('#');
  return !checksum || checksum === crc32(bytes).toString(16).padStart(8, '0');
}

/** Keys of everything a task refers to. */
export function referredBy(task) {
  return [task.payload, task.result].map((stored) => (stored ? referred(stored) : null)).filter(Boolean);
}

/** The task's view, with what lies elsewhere put in; what is gone, or too large to be shown, is named in its place. */
export async function filled(s3, task, view) {
  const whole = {...view};
  for (const field of ['payload', 'result']) {
    const key = task[field] ? referred(task[field]) : null;
    if (key !== null) whole[field] = await fetched(s3, key, task[field]);
  }
  return whole;
}

async function fetched(s3, key, reference) {
  const blob = await s3.getBytes(key, {most: SHOWN});
  if (blob === null) return {$missing: key};
  if (blob.bytes !== null && !isIntact(reference, blob.bytes)) return {$damaged: key};
  return blob.bytes === null ? {$large: key, bytes: blob.size} : valueOfBytes(blob.bytes);
}
