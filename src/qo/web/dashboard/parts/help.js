// The dialog with the keyboard shortcuts.

import {h} from './dom.js';
import {dialog} from './dialog.js';
import {keyboard} from './keys.js';
import {ACTIONS} from './status.js';

const KEYS = [
  ['Navigation', [['g o', 'overview'], ['g t', 'tasks'], ['g b', 'batches'], ['g f', 'workflows'], ['g w', 'workers'], ['g s', 'schedules'], ['g l', 'limits'], ['g a', 'audit'], ['?', 'this help']]],
  ['Tasks', [['/', 'search'], ['j k', 'down, up'], ['Enter', 'open'], ['x', 'select'], ['a', 'select the page'],
    ['n p', 'next, previous page'], ['Esc', 'leave the field, clear the selection']]],
  ['Current or selected tasks', [...Object.values(ACTIONS).filter(({single}) => !single).map(({key, label}) => [key, label.toLowerCase()]), ['u', 'back to the list']]],
];

export function helpDialog() {
  const box = h('input', {type: 'checkbox', checked: keyboard.on, on: {change: () => { keyboard.on = box.checked; }}});
  dialog({
    title: 'Keyboard shortcuts',
    body: [
      h('div', {class: 'keys'}, KEYS.map(([title, keys]) => h('section', {}, h('h3', {}, title),
        h('dl', {}, keys.map(([key, what]) => [h('dt', {}, key.split(' ').map((each) => h('kbd', {}, each))), h('dd', {}, what)]))))),
      h('label', {class: 'check'}, box, 'Enable shortcuts'),
    ],
    confirm: null,
  });
}
