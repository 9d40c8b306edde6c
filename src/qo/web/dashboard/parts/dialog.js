// Modal dialogs, with the browser's dialog element: focus stays inside, Escape closes.

import {h, likeness} from './dom.js';
import {icon} from './icons.js';
import {problemLine, submit} from './submit.js';

// Resolves to the result of `confirm.value()`, or null if the user closes the dialog. If it throws, the dialog stays open
// and shows the error.
export function dialog({title, body, confirm}) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    const problem = problemLine();
    const form = h('form', {class: 'dialog-form', on: {submit: accept}},
      h('header', {}, h('h2', {id: 'dialog-title'}, title),
        h('button', {type: 'button', class: 'icon-button', 'aria-label': 'Close', on: {click: () => end(null)}}, icon('close'))),
      h('div', {class: 'dialog-body'}, body, problem),
      confirm && h('footer', {},
        h('button', {type: 'button', class: 'button', on: {click: () => end(null)}}, 'Back'),
        h('button', {type: 'submit', class: `button ${confirm.danger ? 'danger' : 'primary'}`}, confirm.label)));
    const element = h('dialog', {'aria-labelledby': 'dialog-title', on: {
      cancel: () => end(null),
      click: (event) => event.target === element && end(null),
    }}, form);
    document.body.append(element);
    element.showModal();

    async function accept(event) {
      event.preventDefault();
      await submit(form.querySelector('[type=submit]'), problem, async () => end(confirm.value ? await confirm.value() : true));
    }

    function end(value) {
      element.close();
      element.remove();
      (before?.isConnected === false ? likeness(document.body, before) : before)?.focus?.(); // a refresh may have replaced it
      resolve(value);
    }
  });
}

export function field(label, control, hint) {
  return h('label', {class: 'field'}, h('span', {}, label), control, hint && h('small', {}, hint));
}
