// A workflow as a layered graph in SVG. It is laid out once, and only states change after that.

import {h, svg} from './dom.js';
import {duration, number, plural, seconds} from './format.js';
import {BOX, layOut} from './graph_layout.js';
import {address, taskAddress} from './router.js';

export const STATES = ['completed', 'running', 'pending', 'blocked', 'failed', 'cancelled', 'missing'];
const MAX_LABEL_LENGTH = 19; // characters

// Returns {element, update(workflow)}; `update` returns false if the graph has other boxes or lines now.
export function graph(workflow) {
  const {boxes, lines} = workflow;
  const shape = shapeOf(workflow);
  const {width, height, places, paths} = layOut(boxes, lines);
  const edges = lines.map(([from, to], at) => ({from, to, element: svg('path', {class: 'edge', d: paths[at], 'marker-end': 'url(#to)'})}));
  const nodes = boxes.map((box, at) => node(box, places[at], workflow));
  const element = svg('svg', {class: 'flow', width, height, viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': `Graph of ${plural(workflow.total, 'task')}`},
    svg('defs', {}, ['to', 'to-critical'].map((id) => svg('marker', {id, viewBox: '0 0 8 8', refX: 7, refY: 4, markerUnits: 'userSpaceOnUse', markerWidth: 9, markerHeight: 9, orient: 'auto'}, svg('path', {d: 'M0,0 L8,4 L0,8 Z'})))),
    svg('g', {}, edges.map((edge) => edge.element)), svg('g', {}, nodes.map((each) => each.element)));
  const made = {
    element: h('div', {class: 'scroll flow-scroll', tabindex: '0', role: 'region', 'aria-label': 'Graph'}, element),
    update(now) {
      if (shapeOf(now) !== shape) return false;
      const steps = new Set(now.critical_path.slice(1).map((to, at) => `${now.critical_path[at]} ${to}`));
      const critical = new Set(now.critical_path);
      const rows = new Map(now.rows.map((row) => [row.index, row]));
      for (const {from, to, element: edge} of edges) {
        const isCritical = steps.has(`${from} ${to}`);
        edge.setAttribute('class', `edge ${isCritical ? 'critical' : ''}`);
        edge.setAttribute('marker-end', `url(#${isCritical ? 'to-critical' : 'to'})`);
        if (isCritical) edge.parentNode.append(edge); // above the others
      }
      nodes.forEach((each, at) => each.update(now.boxes[at], rows.get(now.boxes[at].index), critical.has(at)));
      return true;
    },
  };
  made.update(workflow);
  return made;
}

const shapeOf = ({boxes, lines, is_grouped: isGrouped}) => JSON.stringify([isGrouped, lines, boxes.map(({layer, type, task_id: id, tasks}) => [layer, type, id, tasks])]);

function node(box, {x, y}, {id}) {
  const name = box.type ?? 'several types';
  const label = name.length > MAX_LABEL_LENGTH ? `${name.slice(0, MAX_LABEL_LENGTH - 1)}…` : name;
  const href = box.task_id ? taskAddress(box.task_id) : address('tasks', {batch: id, type: box.type});
  const title = svg('title');
  const state = svg('text', {class: 'state', x: x + 16, y: y + 36});
  const bar = svg('g');
  const element = svg('a', {href, 'data-box': box.index ?? `${box.layer} ${box.type ?? ''}`}, title,
    box.task_id ? null : svg('rect', {class: 'pile', x: x + 4, y: y + 4, width: BOX.width, height: BOX.height, rx: 10}),
    svg('rect', {class: 'box', x, y, width: BOX.width, height: BOX.height, rx: 10}), bar,
    svg('text', {class: 'name', x: x + 16, y: y + 19}, label), state);
  let before = '';
  return {
    element,
    update(now, row, isCritical) {
      const text = row ? stateText(row) : groupText(now);
      const stamp = JSON.stringify([now.states, text, isCritical]);
      if (stamp === before) return;
      before = stamp;
      element.setAttribute('class', `node ${mainState(now)} ${isCritical ? 'critical' : ''}`);
      element.dataset.state = mainState(now);
      title.textContent = `${name}: ${text}${isCritical ? ' · critical path' : ''}`;
      state.textContent = text;
      bar.replaceChildren(...strip(now, x, y));
    },
  };
}

// The state that needs attention first.
function mainState({states}) {
  return ['missing', 'failed', 'running', 'pending', 'cancelled', 'blocked', 'completed'].find((each) => states[each]) ?? 'missing';
}

// The left edge of a box in the colours of its states.
function strip({states, tasks}, x, y) {
  let top = y + 9;
  return STATES.filter((each) => states[each]).map((each) => {
    const tall = ((BOX.height - 18) * states[each]) / tasks;
    const part = svg('rect', {class: `fill ${each}`, x: x + 7, y: top.toFixed(1), width: 3, height: tall.toFixed(1)});
    top += tall;
    return part;
  });
}

export function stateText(row) {
  const took = row.started_at && row.completed_at ? duration(seconds(row.completed_at) - seconds(row.started_at)) : null;
  if (row.state === 'blocked') return row.waits ? `waiting for ${plural(row.waits, 'task')}` : 'waiting';
  if (row.state === 'pending') return row.attempt ? `pending after attempt ${row.attempt}` : 'pending';
  return took && row.state !== 'cancelled' ? `${row.state} · ${took}` : row.state;
}

function groupText({tasks, states}) {
  if (tasks === 1) return mainState({states});
  const failed = states.failed ? `, ${number(states.failed)} failed` : '';
  return `${number(states.completed ?? 0)} of ${plural(tasks, 'task')}${failed}`;
}
