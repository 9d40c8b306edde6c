// Validates documents of the bucket. Anyone with write access can store anything there. Invalid documents are skipped, so
// that one of them does not hide the others.

import {STATUSES} from './rules.js';

const LATEST = 8e12; // seconds; the latest date that JavaScript can show

const isText = (value) => typeof value === 'string';
const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
const isInstant = (value) => isNumber(value) && Math.abs(value) < LATEST;
const isCount = (value) => Number.isSafeInteger(value) && value >= 0;
const isList = (value) => Array.isArray(value) && value.every(isText);
const isOneOf = (...words) => (value) => words.includes(value);
const isThing = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const orNone = (test) => (value) => value === null || value === undefined || test(value);
const orDefault = (test) => (value) => value === undefined || test(value);
const fits = (shape) => (value) => isThing(value) && Object.entries(shape).every(([name, test]) => test(value[name]));

/** A stored task, with or without default values. */
export const isTask = fits({
  id: isText,
  queue: isText,
  type: isText,
  status: orDefault((value) => STATUSES.includes(value)),
  payload: orDefault(isText),
  result: orNone(isText),
  error: orNone(isText),
  failure_kind: orNone(isText),
  archived_from: orNone((value) => STATUSES.includes(value)),
  priority: orDefault(isCount),
  needs: orDefault(isList),
  timeout: orDefault(isNumber),
  max_retries: orDefault(isCount),
  retry: orDefault(fits({initial: isNumber, max: isNumber, multiplier: isNumber})),
  attempt: orDefault(isCount),
  failures: orDefault(isCount),
  available_at: isInstant,
  lease_expires_at: orNone(isInstant),
  worker_id: orNone(isText),
  created_at: isInstant,
  updated_at: isInstant,
  started_at: orNone(isInstant),
  completed_at: orNone(isInstant),
  idempotency_key: orNone(isText),
  trace_id: orNone(isText),
  run_at: orNone(isInstant),
  version: orDefault(isCount),
  rank: isNumber,
  lease_id: orNone(isText),
  batch: orNone(isText),
  progress: orNone(isNumber),
  progress_text: orNone(isText),
});

/** One transition. */
export const isEvent = fits({
  version: isCount,
  at: isInstant,
  status: (value) => STATUSES.includes(value),
  attempt: isCount,
  failures: isCount,
  available_at: isInstant,
  worker_id: orNone(isText),
  error: orNone(isText),
  log: orNone(isText),
});

export const isWorker = fits({
  worker_id: isText,
  status: orDefault(isText),
  started_at: isInstant,
  last_heartbeat: isInstant,
  queues: orDefault(isList),
  types: orDefault(isList),
  capabilities: orDefault(isList),
  capacity: isCount,
  current_load: orDefault(isCount),
  current_tasks: orDefault(isList),
  waiting: orDefault(isCount),
  tasks_completed: orDefault(isCount),
  tasks_failed: orDefault(isCount),
  host: orDefault(isText),
  version: orDefault(isText),
});

const isFire = fits({
  at: isInstant,
  outcome: isOneOf('fired', 'skipped', 'missed'),
  decided_at: isInstant,
  task_id: orDefault(isText),
  reason: orDefault(isText),
  count: orDefault(isCount),
  by_hand: orDefault((value) => typeof value === 'boolean'),
});

/** A stored schedule. */
export const isSchedule = fits({
  schedule: fits({
    name: isText,
    task: fits({type: isText, queue: orDefault(isText)}),
    cron: orDefault(isText),
    every: orDefault(isNumber),
    timezone: orDefault(isText),
    end_at: orNone(isInstant),
    overlap: orDefault(isOneOf('allow', 'skip', 'cancel')),
    catch_up: orDefault(isOneOf('none', 'last', 'all')),
  }),
  source: orDefault(isText),
  paused: orDefault((value) => typeof value === 'boolean'),
  removed: orDefault((value) => typeof value === 'boolean'),
  declared_at: orDefault(isInstant),
  declared_by: orDefault(isText),
  recent: orDefault((value) => Array.isArray(value) && value.every(isFire)),
});

const isRates = (value) => isThing(value) && Object.values(value).every(isNumber);

export const isControl = fits({
  paused: orDefault((value) => typeof value === 'boolean'),
  paused_queues: orDefault(isList),
  paused_types: orDefault(isList),
  rate_limit: orDefault(isNumber),
  rate_limits: orDefault(isRates),
  limits: orDefault(isThing),
  max_types: orNone(isCount),
  draining: orDefault(isList),
});

/** [queue, type, status, priority, number] */
export const isLane = ([queue, type, status, priority, number]) =>
  isText(queue) && isText(type) && STATUSES.includes(status) && isCount(priority) && isCount(number);

const isCounts = (value) => isThing(value) && Object.values(value).every(isCount);
const isStatsRow = ([type, level, row]) => isText(type) && isText(level) && fits({completed: orDefault(isCount), failed: orDefault(isCounts)})(row);
const isInterval = ([start, seconds, rows]) => isCount(start) && isCount(seconds) && Array.isArray(rows) && rows.every((row) => Array.isArray(row) && isStatsRow(row));

/** The statistics of one hour, of one process or of all. */
export const isStats = fits({
  intervals: (value) => Array.isArray(value) && value.every((each) => Array.isArray(each) && isInterval(each)),
  merged: orDefault(isList),
});
