// Stored bytes and instants as readable values, as in qo/codec.py. Lease ids are never included.

import {parse} from '../parts/lossless_json.js';
import {effectivePriority, groupOf, needsOf, waitedUntil, whole} from './rules.js';

const SEALED = '\0qo-sealed-1:'; // how an encrypted value begins; the id of its key follows
const KEY_ID_SIZE = 4; // bytes
const decoder = new TextDecoder('utf-8', {fatal: true});

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
}

export function base64Of(text) {
  return base64OfBytes(new TextEncoder().encode(text));
}

export function textOf(base64) {
  return decoder.decode(bytesOf(base64));
}

/** A payload or result: JSON, raw bytes after a NUL byte, shown as {"$base64": …}, or {"$encrypted": key id}. */
export function valueOf(base64) {
  try {
    return valueOfBytes(bytesOf(base64));
  } catch {
    return {$base64: base64}; // not written by qo; one invalid task must not hide the others
  }
}

export function valueOfBytes(bytes) {
  if (isSealed(bytes)) return {$encrypted: hexOf(bytes.subarray(SEALED.length, SEALED.length + KEY_ID_SIZE))};
  if (bytes[0] === 0) return {$base64: base64OfBytes(bytes.subarray(1))};
  try {
    return parse(decoder.decode(bytes));
  } catch {
    return {$base64: base64OfBytes(bytes)};
  }
}

function isSealed(bytes) {
  return [...SEALED].every((sign, place) => bytes[place] === sign.charCodeAt(0));
}

function hexOf(bytes) {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

function base64OfBytes(bytes) {
  let binary = '';
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

/** Rounds to microseconds first, as Python does, so that both show the same millisecond. */
export function iso(seconds) {
  if (seconds === null || seconds === undefined) return null;
  const whole = Math.floor(seconds); // apart, because a product with 1e6 would round the microseconds
  const microseconds = Math.round((seconds - whole) * 1e6);
  return new Date(whole * 1000 + Math.floor(microseconds / 1000)).toISOString();
}

export function taskView(stored, now) {
  const task = whole(stored);
  return {
    id: task.id,
    queue: task.queue,
    type: task.type,
    status: task.status,
    payload: valueOf(task.payload),
    result: task.result === null ? null : valueOf(task.result),
    error: task.error,
    failure_kind: task.failure_kind,
    archived_from: task.archived_from,
    priority: task.priority,
    effective_priority: effectivePriority(task, waitedUntil(task, now)),
    needs: needsOf(task.needs),
    group: groupOf(task.needs),
    timeout: task.timeout,
    max_retries: task.max_retries,
    retry: task.retry,
    attempt: task.attempt,
    failures: task.failures,
    available_at: iso(task.available_at),
    lease_expires_at: iso(task.lease_expires_at),
    worker_id: task.worker_id,
    created_at: iso(task.created_at),
    updated_at: iso(task.updated_at),
    started_at: iso(task.started_at),
    completed_at: iso(task.completed_at),
    idempotency_key: task.idempotency_key,
    trace_id: task.trace_id,
    run_at: iso(task.run_at),
    batch: task.batch,
    progress: task.progress,
    progress_text: task.progress_text,
    version: task.version,
  };
}

export function eventView(event) {
  return {
    version: event.version,
    at: iso(event.at),
    status: event.status,
    attempt: event.attempt,
    failures: event.failures,
    worker_id: event.worker_id ?? null,
    error: event.error ?? null,
    available_at: iso(event.available_at),
    log: event.log ?? null,
  };
}
