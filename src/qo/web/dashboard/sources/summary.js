// The overview without its throughput, from rows, or from counts by queue, type and status if there are too many tasks.

import {DEFAULT_TYPE_LIMIT} from '../parts/type_limit.js';
import {FINISHED, STATUSES, dueAt} from './rules.js';
import {compare, rowView} from './rows.js';
import {iso} from './values.js';

const MAX_FAILURES = 10;

/** lanes: [[queue, type, status, priority, number], …]; without them the rows are counted. */
export function summarise({rows, lanes, now, control, workers, unhandled, exact}) {
  const counted = countLanes({rows, lanes});
  const counts = zero();
  const types = new Map(); // Maps, because a type can be called `constructor`
  const queues = new Map();
  for (const [queue, type, status, , number] of counted) {
    for (const sum of [counts, under(types, type), under(queues, queue)]) sum[status] += number;
  }
  const unhandledTypes = sumByType(unhandled);
  const waiting = rows.filter((row) => row.status === 'pending');
  const oldest = oldestBy(waiting, 'queue', now);
  const liveTypes = liveTypesBy(counted);
  return {
    at: iso(now),
    counts,
    types: listed(types, 'type').map((each) => ({...each, unhandled: unhandledTypes.get(each.type) ?? 0})),
    queues: listed(queues, 'queue').map((each) => ({
      ...each,
      live_types: liveTypes.get(each.queue)?.size ?? 0,
      oldest_age: oldest.get(each.queue) ?? null,
      paused: control.paused || control.paused_queues.includes(each.queue),
    })),
    priorities: priorities(counted, waiting, now),
    exact,
    workers: workersBy(workers),
    failures: rows
      .filter((row) => row.status === 'failed')
      .sort((a, b) => compare(b.updated_at, a.updated_at))
      .slice(0, MAX_FAILURES)
      .map((row) => rowView(row, now)),
    controls: controlsOf(control),
  };
}

/** Types with unfinished tasks, by queue. */
function liveTypesBy(counted) {
  const types = new Map();
  for (const [queue, type, status, , number] of counted) {
    if (!number || FINISHED.has(status)) continue;
    if (!types.has(queue)) types.set(queue, new Set());
    types.get(queue).add(type);
  }
  return types;
}

/** [[queue, type, status, priority, number], …] */
export function countLanes({rows, lanes}) {
  return lanes ?? rows.map((row) => [row.queue, row.type, row.status, row.priority, 1]);
}

export const laneName = (queue, type) => JSON.stringify([queue, type]);

/** The number of pending tasks that nothing handles, by laneName, as `unhandled_lanes` in qo/handled_types.py. `consumers`
 * are the queues and types that clients take: [{queues, types}]. */
export function unhandledLanes(counted, workers, consumers = []) {
  const active = [...workers.filter(({status}) => status === 'busy' || status === 'idle'), ...consumers];
  const running = new Set(counted.filter(([, , status, , number]) => status === 'running' && number > 0).map(([queue, type]) => laneName(queue, type)));
  const takes = (names, name) => !names.length || names.includes(name);
  const sums = new Map();
  for (const [queue, type, status, , number] of counted) {
    const lane = laneName(queue, type);
    if (status !== 'pending' || number <= 0 || running.has(lane)) continue;
    if (active.some((worker) => takes(worker.queues, queue) && takes(worker.types, type))) continue;
    sums.set(lane, (sums.get(lane) ?? 0) + number);
  }
  return sums;
}

/** The note of qo/handled_types.py: what clients take with `dequeue`. */
export function consumersIn(note, now) {
  return Object.entries(note?.until ?? {}).filter(([, until]) => until > now).map(([key]) => {
    const at = key.indexOf('/');
    return {queues: [key.slice(0, at)].filter(Boolean), types: [key.slice(at + 1)].filter(Boolean)};
  });
}

function sumByType(lanes) {
  const sums = new Map();
  for (const [lane, number] of lanes) {
    const [, type] = JSON.parse(lane);
    sums.set(type, (sums.get(type) ?? 0) + number);
  }
  return sums;
}

function zero() {
  return Object.fromEntries(STATUSES.map((status) => [status, 0]));
}

function under(sums, name) {
  if (!sums.has(name)) sums.set(name, zero());
  return sums.get(name);
}

function listed(sums, word) {
  return [...sums].sort(([a], [b]) => compare(a, b)).map(([name, counts]) => ({[word]: name, ...counts}));
}

/** Seconds since the oldest pending task became due, by the given field. */
function oldestBy(waiting, field, now) {
  const ages = new Map();
  for (const row of waiting) {
    const age = now - dueAt(row);
    if (age >= 0 && age >= (ages.get(row[field]) ?? 0)) ages.set(row[field], age);
  }
  return ages;
}

/** Depths from the counts, ages from the rows that were read. */
function priorities(counted, waiting, now) {
  const ages = oldestBy(waiting, 'priority', now);
  const depths = new Map();
  for (const [, , status, priority, number] of counted) {
    if (status === 'pending') depths.set(priority, (depths.get(priority) ?? 0) + number);
  }
  return [...depths]
    .sort(([a], [b]) => a - b)
    .map(([priority, depth]) => ({priority, depth, oldest_age: ages.get(priority) ?? null}));
}

function workersBy(workers) {
  const sums = {busy: 0, idle: 0, draining: 0, stale: 0};
  for (const worker of workers) sums[worker.status] = (sums[worker.status] ?? 0) + 1;
  return sums;
}

function fleetLimits(limits) {
  const numbers = ({concurrency = 0, rate = 0, per = 1}) => ({concurrency, rate, per});
  return Object.fromEntries(Object.keys(limits).sort().map((scope) => [scope, numbers(limits[scope])]));
}

function controlsOf(control) {
  return {
    paused: {all: control.paused, queues: control.paused_queues, types: control.paused_types},
    limit: control.rate_limit,
    limits: control.rate_limits,
    max_types: control.max_types ?? DEFAULT_TYPE_LIMIT,
    fleet: fleetLimits(control.limits ?? {}),
  };
}
