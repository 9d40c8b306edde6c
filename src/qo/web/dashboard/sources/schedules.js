// Schedules as stored in the bucket, as in qo/schedules/view.py. The page does not compute fire times: a server does.

import {isSchedule} from './shapes.js';
import {iso} from './values.js';

const PREFIX = 'schedules/';
const ACTIVE_FOR = 86_400; // seconds, as in qo/schedules/decision.py

/** {schedules, isComplete}: one call reads a bounded number of schedules, the next call continues. */
export async function readSchedules(notes, now) {
  const found = await notes.find(PREFIX, {after: PREFIX, isWanted: () => true, as: (value) => (isSchedule(value) ? value : null)});
  const stored = found.notes.filter(({name, value}) => name === PREFIX + value.schedule.name);
  return {schedules: stored.map(({value}) => scheduleView(value, now)), isComplete: found.isComplete};
}

function scheduleView(note, now) {
  const {schedule} = note;
  const status = statusOf(note, now);
  return {
    name: schedule.name,
    status,
    source: note.source ?? 'api',
    type: schedule.task.type,
    queue: schedule.task.queue,
    cron: schedule.cron ?? null,
    every: schedule.every ?? null,
    timezone: schedule.timezone ?? 'UTC',
    overlap: schedule.overlap ?? 'allow',
    catch_up: schedule.catch_up ?? 'last',
    next_fires: [],
    recent: [...(note.recent ?? [])].reverse().map((fire) => ({...fire, at: iso(fire.at), decided_at: iso(fire.decided_at)})),
    inactive_because: status === 'inactive' ? inactiveBecause(note) : null,
  };
}

function statusOf(note, now) {
  if ((note.source ?? 'api') === 'code' && (note.removed || now - (note.declared_at ?? 0) > ACTIVE_FOR)) return 'inactive';
  if (note.paused) return 'paused';
  return (note.schedule.end_at ?? Infinity) < now ? 'ended' : 'active';
}

function inactiveBecause(note) {
  if (!note.removed) return 'no worker has declared it for a day';
  const worker = note.declared_by ? `worker ${note.declared_by}` : 'a worker';
  return `${worker} handles ${note.schedule.task.type}, and its code does not have this schedule`;
}
