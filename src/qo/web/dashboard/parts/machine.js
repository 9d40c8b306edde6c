// The life cycle as a diagram, with the transitions of this task.

import {svg} from './dom.js';

const NODES = {pending: [78, 62], running: [262, 62], completed: [462, 30], failed: [462, 110], cancelled: [170, 168], archived: [620, 110]};
const WIDTH = 104;
const HEIGHT = 34;

// The possible transitions and their lines.
const EDGES = {
  'pending>running': {d: 'M130,56 H204', label: [167, 48]},
  'running>pending': {d: 'M210,70 H136', label: [172, 86]},
  'running>completed': {d: 'M314,54 C350,44 365,36 404,32', label: [356, 34]},
  'running>failed': {d: 'M314,72 C350,82 365,98 404,106', label: [352, 104]},
  'pending>cancelled': {d: 'M88,79 C92,120 104,146 114,158', label: [82, 124]},
  'running>cancelled': {d: 'M252,79 C246,120 236,146 226,158', label: [258, 124]},
  'failed>pending': {d: 'M452,127 C420,206 60,226 64,85', label: [300, 204]},
  'cancelled>pending': {d: 'M130,151 C118,132 108,108 104,85', label: [128, 116]},
  'completed>archived': {d: 'M514,34 C562,44 590,62 604,88', label: [578, 50]},
  'failed>archived': {d: 'M514,110 H562', label: [538, 102]},
  'cancelled>archived': {d: 'M222,172 C420,196 590,182 612,133', label: [470, 176]},
  'archived>pending': {d: 'M640,127 C640,246 30,246 52,85', label: [330, 228]},
};

export function machine(history, status) {
  const taken = new Map();
  history.slice(1).forEach((event, at) => {
    const edge = `${history[at].status}>${event.status}`;
    taken.set(edge, (taken.get(edge) ?? 0) + 1);
  });
  const been = new Set([...history.map((event) => event.status), status]);
  const path = [...new Set(history.map((event) => event.status))].join(', ');
  return svg('svg', {class: 'machine', viewBox: '0 0 690 236', role: 'img', 'aria-label': `Current status: ${status}. History: ${path}.`},
    svg('defs', {}, ['arrow', 'arrow-taken'].map((id) => svg('marker', {id, viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto-start-reverse'}, svg('path', {d: 'M0,0 L8,4 L0,8 Z'})))),
    Object.entries(EDGES).sort(([one], [other]) => taken.has(one) - taken.has(other)).map(([edge, {d, label}]) => {
      const times = taken.get(edge) ?? 0;
      return [
        svg('path', {class: `edge ${times ? 'taken' : ''}`, d, 'marker-end': `url(#${times ? 'arrow-taken' : 'arrow'})`}),
        times > 1 && svg('text', {class: 'times', x: label[0], y: label[1], 'text-anchor': 'middle'}, `×${times}`),
      ];
    }),
    Object.entries(NODES).map(([name, [x, y]]) => svg('g', {class: `node ${name} ${been.has(name) ? 'been' : ''} ${name === status ? 'now' : ''}`},
      svg('rect', {x: x - WIDTH / 2, y: y - HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: 9}),
      svg('text', {x, y: y + 4.5, 'text-anchor': 'middle'}, name))));
}
