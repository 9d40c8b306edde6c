// The rules of the model for actions on tasks, as in qo/model/change.py. A test compares the two.

export const STATUSES = ['pending', 'running', 'completed', 'failed', 'cancelled', 'archived'];
export const FINISHED = new Set(['completed', 'failed', 'cancelled', 'archived']);

/** The allowed statuses and the changes of each action. The layouts implement deletion. */
export const ACTIONS = {
  cancel: {from: ['pending', 'running'], to: 'cancelled'},
  replay: {from: ['failed', 'cancelled', 'archived'], to: 'pending', delay: 0, failures: 0},
  archive: {from: ['completed', 'failed', 'cancelled'], to: 'archived'},
  delete: {from: [...FINISHED], to: null},
};

// A group is stored as the first need, behind a mark: see qo/model/group.py.
export const groupOf = ([first]) => (first?.startsWith('!') ? first.slice(1) : null);
export const needsOf = (needs) => needs.filter((name) => !name.startsWith('!'));

// Default values, which documents leave out.
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
  batch: null,
  progress: null,
  progress_text: null,
};

export function whole(task) {
  const made = {...DEFAULTS, ...task};
  return {...made, failure_kind: kindOf(made.error, made.failure_kind)};
}

/** As `kind_of` in qo/model/task.py: older versions write errors without kinds. */
function kindOf(error, kind) {
  if (error === null) return null;
  return kind ?? (String(error).startsWith('lost: ') ? 'lost' : 'error');
}

/** The changed task, or null if the status does not allow the action. */
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
  return `the task is ${task.status}; ${action} requires one of: ${[...ACTIONS[action].from].sort().join(', ')}`;
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
    log: null,
  };
}

/** Leased, but the handler has not started. */
const isClaimedOnly = (task) => task.status === 'running' && (task.started_at ?? null) === null;

/** When the task started to wait: its due time, or its creation if that is later. */
export function dueAt(task) {
  return Math.max(task.available_at, task.created_at);
}

/** The rank at `now`, with ageing. */
export function effectiveRank(task, now) {
  return task.rank <= now ? dueAt(task) : task.rank;
}

/** The end of the wait: now, or the start of the attempt. */
export function waitedUntil(task, now) {
  return task.status === 'pending' || isClaimedOnly(task) ? now : (task.started_at ?? dueAt(task));
}

/** The priority with ageing, at `until`. */
export function effectivePriority(task, until) {
  const {priority, rank} = task;
  const due = dueAt(task);
  if (priority === 0 || rank <= due || until <= due) return priority;
  const ageing = (rank - due) / priority;
  return Math.max(0, priority - Math.trunc((until - due) / ageing));
}

/** Sixteen random bytes that identify a write. */
export function newWriteId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}
