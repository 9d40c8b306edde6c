// Formats numbers, instants and durations.

const NUMBER = new Intl.NumberFormat('en');
const SHORT = new Intl.NumberFormat('en', {notation: 'compact', maximumFractionDigits: 1});
const INSTANT = new Intl.DateTimeFormat('en-GB', {dateStyle: 'medium', timeStyle: 'medium'});
const CLOCK = new Intl.DateTimeFormat('en-GB', {hour: '2-digit', minute: '2-digit'});

export const number = (value) => NUMBER.format(value);
export const short = (value) => (Math.abs(value) < 10_000 ? NUMBER.format(value) : SHORT.format(value));
export const instant = (iso) => INSTANT.format(new Date(iso));
export const clock = (iso) => CLOCK.format(new Date(iso));

const YEAR = 365 * 86_400; // seconds

// 420 ms, 12 s, 3 min, 2 h 5 min, 4 d, 2 y
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return 'unknown';
  const s = Math.abs(seconds);
  if (s < 0.001) return '0 s';
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1).replace('.0', '')} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return pair(s, 60, 'min', 1, 's', 10);
  if (s < 86_400) return pair(s, 3600, 'h', 60, 'min', 10);
  if (s < YEAR) return pair(s, 86_400, 'd', 3600, 'h', 10);
  return pair(s, YEAR, 'y', 86_400, 'd', 2);
}

function pair(seconds, unit, name, smaller, smallerName, most) {
  const large = Math.floor(seconds / unit);
  const rest = Math.floor((seconds % unit) / smaller);
  return large < most && rest ? `${large} ${name} ${rest} ${smallerName}` : `${large} ${name}`;
}

// Whole seconds, so that ticking texts do not flicker.
export const age = (seconds) => duration(seconds < 10 ? Math.floor(seconds) : seconds);

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

// Error messages of the server start with a lower-case letter and have no full stop.
export const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?…]$/.test(text) ? '' : '.'}`;

export const firstLine = (text, most = 160) => {
  const line = (text ?? '').trim().split('\n', 1)[0];
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
};

// Ids of about the same time have the same beginning, so the end is shown as well.
export const shortId = (id) => (id.length > 14 ? `${id.slice(0, 4)}…${id.slice(-6)}` : id);

export const seconds = (iso) => Date.parse(iso) / 1000;

const LEVELS = {0: 'high', 6: 'medium', 9: 'low'};
export const level = (priority) => (LEVELS[priority] ? `${priority} · ${LEVELS[priority]}` : String(priority));

// A group as people write it. `%` alone stands for a missing argument, as in qo/model/group.py.
export function shownGroup(group) {
  if (group.endsWith('=%')) return `no ${group.slice(0, -2)}`;
  try {
    return decodeURIComponent(group);
  } catch {
    return group; // written by another program
  }
}
