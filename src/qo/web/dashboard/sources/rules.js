// The model's rules for what people do to tasks: the same as qo/model/change.py, and a test compares the two.

export const STATUSES = ['pending', 'running', 'completed', 'failed', 'cancelled', 'archived'];
export const FINISHED = new Set(['completed', 'failed', 'cancelled', 'archived']);

/** What each action takes, and what it makes of it. A deletion is written by the layout itself. */
export const ACTIONS = {
  cancel: {from: ['pending', 'running'], to: 'cancelled'},
  replay: {from: ['failed', 'cancelled', 'archived'], to: 'pending', delay: 0, failures: 0},
  archive: {from: ['completed', 'failed', 'cancelled'], to: 'archived'},
  delete: {from: [...FINISHED], to: null},
};

// What a document leaves out.
const DEFAULTS = {
  status: 'pending',
  payload: 'bnVsbA==', // null
  result: null,
  error: null,
  failure_kind: null,
  archived_from: null,
  priority: 6,
  needs: [],
  timeout: 300,
  max_retries: 3,
  retry: {initial: 1, max: 60, multiplier: 2, jitter: 0.25, timeout_growth: 1},
  attempt: 0,
  failures: 0,
  lease_expires_at: null,
  worker_id: null,
  started_at: null,
  completed_at: null,
  idempotency_key: null,
  trace_id: null,
  run_at: null,
  version: 1,
  lease_id: null,
};

export function whole(task) {
  const made = {...DEFAULTS, ...task};
  return {...made, failure_kind: made.error === null ? null : (made.failure_kind ?? 'error')}; // older builds wrote none
}

/** The changed task, or null if its status does not allow it. */
export function apply(task, action, now) {
  const change = ACTIONS[action];
  if (!change.from.includes(task.status)) return null;
  const {to} = change;
  const availableAt = change.delay === undefined ? task.available_at : now + change.delay;
  return {
    ...task,
    status: to,
    available_at: availableAt,
    rank: change.delay === undefined ? task.rank : availableAt + Math.max(0, task.rank - dueAt(task)),
    failures: change.failures ?? task.failures,
    archived_from: to === 'archived' ? task.status : null,
    result: to === 'pending' ? null : task.result,
    worker_id: to === 'pending' ? null : task.worker_id,
    lease_expires_at: null,
    started_at: to === 'pending' ? null : task.started_at,
    completed_at: FINISHED.has(to) ? (task.completed_at ?? now) : null,
    updated_at: now,
    version: task.version + 1,
  };
}

export function refusal(task, action) {
  return `it is ${task.status}; ${action} requires one of: ${[...ACTIONS[action].from].sort().join(', ')}`;
}

/** One entry of a task's history. */
export function eventOf(task) {
  return {
    version: task.version,
    at: task.updated_at,
    status: task.status,
    attempt: task.attempt,
    failures: task.failures,
    worker_id: task.worker_id,
    error: task.error,
    available_at: task.available_at,
  };
}

/** A worker holds it and has not said that its handler began. */
const isClaimedOnly = (task) => task.status === 'running' && (task.started_at ?? null) === null;

/** The instant a task begins to wait. A task that asks for an instant in the past waits from its creation on. */
export function dueAt(task) {
  return Math.max(task.available_at, task.created_at);
}

/** The rank at `now`: a task that has waited long enough goes before all that became due after it. */
export function effectiveRank(task, now) {
  return task.rank <= now ? dueAt(task) : task.rank;
}

/** Until when a task has waited: now, or the start of its attempt. */
export function waitedUntil(task, now) {
  return task.status === 'pending' || isClaimedOnly(task) ? now : (task.started_at ?? dueAt(task));
}

/** The level a task competes at after waiting until `until`. */
export function effectivePriority(task, until) {
  const {priority, rank} = task;
  const due = dueAt(task);
  if (priority === 0 || rank <= due || until <= due) return priority;
  const ageing = (rank - due) / priority;
  return Math.max(0, priority - Math.trunc((until - due) / ageing));
}

/** Sixteen random bytes: what tells one write from another. */
export function newWriteId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}
