// The throughput of all processes, from the notes of qo/stats/archive.py, as in qo/web/stats/throughput.py. A test compares
// the two.

import {isStats} from './shapes.js';
import {iso} from './values.js';

const PREFIX = 'stats/';
const MERGED = 'merged'; // the note with the merged counts of several processes
const [MINUTE, HOUR] = [60, 3600]; // seconds
const MINUTES = 60;

/** {notes: [{name, value: result of countsIn}], isComplete} for the hours of the last 60 minutes. */
export function readStats(notes, now) {
  const hours = [now - HOUR, now].map(folderOf);
  return notes.find(PREFIX, {after: hours[0], isWanted: (name) => hours.includes(parent(name)), as: countsIn});
}

/** [{at, completed, failed}]: the last 60 minutes, oldest first, without gaps. */
export function lastHour(notes, now) {
  const first = (Math.floor(now / MINUTE) - MINUTES + 1) * MINUTE;
  const minutes = Array.from({length: MINUTES}, (_, index) => ({at: iso(first + index * MINUTE), completed: 0, failed: 0}));
  const merged = new Set(notes.flatMap(mergedNames));
  for (const {name, value} of notes) {
    if (merged.has(name)) continue; // an interrupted merge leaves the merged notes behind
    for (const [start, completed, failed] of value.minutes) {
      const minute = minutes[(start - first) / MINUTE];
      if (!minute) continue;
      minute.completed += completed;
      minute.failed += failed;
    }
  }
  return minutes;
}

/** {minutes: [[start, completed, failed]], merged: [process]}; null if the note does not hold statistics. */
export function countsIn(document) {
  if (!isStats(document)) return null;
  const minutes = document.intervals.filter(([, seconds]) => seconds === MINUTE).map(([start, , rows]) => {
    const counted = rows.map(([, , row]) => row);
    return [start, sum(counted.map((row) => row.completed ?? 0)), sum(counted.flatMap((row) => Object.values(row.failed ?? {})))];
  });
  return {minutes, merged: document.merged ?? []};
}

function mergedNames({name, value}) {
  return name.endsWith(`/${MERGED}`) ? value.merged.map((process) => `${parent(name)}/${process}`) : [];
}

/** `stats/2026-11-17T06` */
function folderOf(instant) {
  return PREFIX + new Date(instant * 1000).toISOString().slice(0, 'yyyy-mm-ddThh'.length);
}

function parent(name) {
  return name.slice(0, name.lastIndexOf('/'));
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}
