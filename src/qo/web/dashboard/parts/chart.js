// Charts in SVG, drawn for the current width.

import {h, svg} from './dom.js';
import {clock, number, plural, short} from './format.js';

const HEIGHT = 190;
const LEFT = 40;
const BOTTOM = 22;
const TOP = 10;

// Completed tasks as an area, failed ones as bars in front of it. A caption describes the minute under the pointer.
export function throughput(minutes) {
  const holder = h('div', {class: 'chart', role: 'img', 'aria-label': summary(minutes)});
  const caption = h('p', {class: 'chart-caption', 'aria-hidden': 'true'}, summary(minutes));
  const draw = () => {
    const width = Math.max(280, holder.clientWidth);
    holder.replaceChildren(plot(minutes, width, (text) => { caption.textContent = text ?? summary(minutes); }));
  };
  new ResizeObserver(draw).observe(holder);
  return h('div', {}, holder, caption);
}

function summary(minutes) {
  const completed = minutes.reduce((sum, each) => sum + each.completed, 0);
  const failed = minutes.reduce((sum, each) => sum + each.failed, 0);
  return `${number(completed)} completed and ${number(failed)} failed in the last ${plural(minutes.length, 'minute')}`;
}

function plot(minutes, width, tell) {
  const top = nice(Math.max(2, ...minutes.map((each) => Math.max(each.completed, each.failed))));
  const step = (width - LEFT - 8) / Math.max(1, minutes.length - 1);
  const x = (at) => LEFT + at * step;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const floor = y(0);
  const cursor = svg('line', {class: 'cursor', y1: TOP, y2: floor, x1: -9, x2: -9});
  const points = minutes.map((each, at) => `${x(at).toFixed(1)},${y(each.completed).toFixed(1)}`);
  const thick = Math.max(2, Math.min(10, step * 0.6));
  const drawing = svg('svg', {width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, 'aria-hidden': 'true'},
    [0, top / 2, top].map((value) => [
      svg('line', {class: 'grid', x1: LEFT, x2: width, y1: y(value), y2: y(value)}),
      svg('text', {class: 'tick', x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end'}, short(value)),
    ]),
    minutes.map((each, at) => at % 15 === 14 && svg('text', {class: 'tick', x: x(at), y: HEIGHT - 5, 'text-anchor': at > minutes.length - 5 ? 'end' : 'middle'}, clock(each.at))),
    minutes.length > 1 && svg('path', {class: 'area completed', d: `M${x(0)},${floor}L${points.join('L')}L${x(minutes.length - 1)},${floor}Z`}),
    minutes.length > 1 && svg('path', {class: 'line completed', d: `M${points.join('L')}`}),
    minutes.map((each, at) => each.failed > 0 && svg('rect', {class: 'fill failed', x: x(at) - thick / 2, y: y(each.failed), width: thick, height: floor - y(each.failed), rx: 1})),
    cursor);
  drawing.addEventListener('pointermove', (event) => {
    const at = Math.round((event.clientX - drawing.getBoundingClientRect().left - LEFT) / step);
    const minute = minutes[Math.max(0, Math.min(minutes.length - 1, at))];
    if (!minute) return;
    const place = x(minutes.indexOf(minute));
    cursor.setAttribute('x1', place);
    cursor.setAttribute('x2', place);
    tell(`${clock(minute.at)}: ${number(minute.completed)} completed, ${number(minute.failed)} failed`);
  });
  drawing.addEventListener('pointerleave', () => {
    cursor.setAttribute('x1', -9);
    cursor.setAttribute('x2', -9);
    tell(null);
  });
  return drawing;
}

// 1, 2, 5, 10, 20, 50 …: a round number for the top of the axis.
function nice(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * size).find((each) => each >= value);
}

export function sparkline(values, kind) {
  const [width, height] = [96, 26];
  const top = Math.max(1, ...values);
  const points = values.map((value, at) => `${((at * width) / Math.max(1, values.length - 1)).toFixed(1)},${(height - 2 - ((height - 4) * value) / top).toFixed(1)}`);
  return svg('svg', {class: 'spark', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'},
    values.length > 1 && svg('path', {class: `area ${kind}`, d: `M0,${height}L${points.join('L')}L${width},${height}Z`}),
    values.length > 1 && svg('path', {class: `line ${kind}`, d: `M${points.join('L')}`}));
}

// A bar of several parts: [{kind, value}]. `most` is the value of a full bar.
export function stacked(parts, most) {
  let at = 0;
  const total = parts.reduce((sum, each) => sum + each.value, 0);
  const scale = 100 / Math.max(1, most);
  return svg('svg', {class: 'bar', viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img',
    'aria-label': parts.filter((each) => each.value).map((each) => `${number(each.value)} ${each.kind}`).join(', ') || 'none'},
    parts.filter((each) => each.value).map((each) => {
      const wide = Math.max(each.value * scale, total ? 0.6 : 0);
      const rect = svg('rect', {class: `fill ${each.kind}`, x: at, y: 0, width: wide, height: 10}, svg('title', {}, `${number(each.value)} ${each.kind}`));
      at += wide;
      return rect;
    }));
}

export function meter(share, label) {
  const full = Math.max(0, Math.min(1, share));
  return svg('svg', {class: 'bar meter', viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img', 'aria-label': label},
    svg('rect', {class: `fill ${full >= 1 ? 'running' : 'accent'}`, x: 0, y: 0, width: full * 100, height: 10}));
}
