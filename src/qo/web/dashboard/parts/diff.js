// The differences between two versions of a task, by field and by line of text.

import {h} from './dom.js';

const MAX_LINES = 400; // longer texts are shown completely instead of their differences

// [{path, before, after}] of the fields that both versions have: a field that was not recorded is not a change.
export function differences(before, after, path = '') {
  if (JSON.stringify(before) === JSON.stringify(after)) return [];
  if (isObject(before) && isObject(after)) {
    const names = path === '' ? Object.keys(after).filter((name) => name in before) : [...new Set([...Object.keys(before), ...Object.keys(after)])];
    return names.flatMap((name) => differences(before[name], after[name], path ? `${path}.${name}` : name));
  }
  return [{path, before, after}];
}

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const written = (value) => (value === undefined ? '' : typeof value === 'string' ? value : JSON.stringify(value, null, 2));

export function diffTable(before, after) {
  const changes = differences(before, after);
  if (!changes.length) return h('p', {class: 'quiet'}, 'No recorded field changed.');
  return h('dl', {class: 'diff'}, changes.map((change) => [h('dt', {}, h('code', {}, change.path)), h('dd', {}, lines(written(change.before), written(change.after), change))]));
}

function lines(before, after, change) {
  const [old, young] = [before.split('\n'), after.split('\n')];
  const marks = old.length + young.length > MAX_LINES ? [...old.map((text) => ['-', text]), ...young.map((text) => ['+', text])] : merge(old, young);
  return marks
    .filter(([mark, text]) => !(text === '' && ((mark === '-' && change.before === undefined) || (mark === '+' && change.after === undefined))))
    .map(([mark, text]) => h('div', {class: mark === '-' ? 'gone' : mark === '+' ? 'new' : 'same'}, h('span', {class: 'mark', 'aria-label': mark === '-' ? 'before' : mark === '+' ? 'after' : null}, mark), h('code', {}, text)));
}

// The longest common subsequence of lines. The table is filled from the end, so that it can be read from the start.
function merge(old, young) {
  const common = Array.from({length: old.length + 1}, () => new Uint16Array(young.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = young.length - 1; j >= 0; j -= 1) {
      common[i][j] = old[i] === young[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const marks = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < young.length) {
    if (i < old.length && j < young.length && old[i] === young[j]) {
      marks.push([' ', old[i]]);
      i += 1;
      j += 1;
    } else if (i < old.length && (j === young.length || common[i + 1][j] >= common[i][j + 1])) marks.push(['-', old[i++]]);
    else marks.push(['+', young[j++]]);
  }
  return marks;
}
