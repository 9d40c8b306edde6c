// The task at each transition, as far as the transition recorded it, as in qo/web/dashboard_api/views.py. Unknown fields,
// such as the end of an earlier lease, are left out.

import {FINISHED} from './rules.js';
import {eventView, iso} from './values.js';

const NEVER_CHANGE = ['id', 'queue', 'type', 'payload', 'needs', 'group', 'max_retries', 'retry', 'created_at',
  'idempotency_key', 'trace_id', 'run_at', 'batch'];
const AS_RECORDED = ['status', 'attempt', 'failures', 'worker_id', 'error', 'available_at', 'version'];

/** present: the task's view; events: oldest first; known: views of the task by version, where the store kept them. */
export function history(present, events, known = new Map()) {
  const results = resultsOf(present, events);
  let [started, ended] = [null, null];
  return events.map((event, at) => {
    if (event.status === 'running') started = event.at;
    else if (event.status === 'pending') started = null;
    ended = FINISHED.has(event.status) ? (ended ?? event.at) : null;
    const seen = eventView(event);
    const whole = event.version === present.version ? present : known.get(event.version);
    if (whole) return {...seen, task: without({...whole, payload: present.payload}, 'effective_priority')};
    const times = {updated_at: seen.at, started_at: iso(started), completed_at: iso(ended)};
    return {...seen, task: {...pick(present, NEVER_CHANGE), ...pick(seen, AS_RECORDED), ...times, ...results(at)}};
  });
}

/** Before the first completion there is no result, after the last one it is the present result, in between it is unknown. */
function resultsOf(present, events) {
  const completions = events.flatMap((event, at) => (event.status === 'completed' ? [at] : []));
  return (at) => {
    if (!completions.length || at < completions[0]) return {result: null};
    return at >= completions.at(-1) ? {result: present.result} : {};
  };
}

function pick(thing, names) {
  return Object.fromEntries(names.map((name) => [name, thing[name]]));
}

function without({...thing}, name) {
  delete thing[name];
  return thing;
}
