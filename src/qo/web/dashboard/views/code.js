// Asking for credentials on a page without a server: a code pasted here gets into no history, unlike a link.

import {h} from '../parts/dom.js';

/** Show a form in `root` until a pasted code opens the source; the source. */
export function askForCode(root, open) {
  return new Promise((opened) => {
    const input = h('input', {type: 'password', id: 'code', autocomplete: 'off', spellcheck: 'false', required: true,
      'aria-describedby': 'code-hint'});
    const problem = h('p', {class: 'bad', role: 'alert', hidden: true});
    const button = h('button', {type: 'submit', class: 'button primary'}, 'Open');
    root.replaceChildren(h('main', {}, h('form', {class: 'token', on: {submit}},
      h('h2', {}, 'This page keeps no credentials'),
      h('label', {for: 'code'}, 'Code'), input,
      h('p', {id: 'code-hint', class: 'quiet'}, 'Made by qo dashboard link --paste. A whole link will do, too. '
        + 'It stays in this page’s memory until you close or reload it, and in no history.'),
      problem, button)));
    queueMicrotask(() => input.focus());

    async function submit(event) {
      event.preventDefault();
      button.disabled = true;
      try {
        opened(await open(input.value.trim().split('#').at(-1)));
      } catch (error) {
        problem.hidden = false;
        problem.textContent = error.message;
        input.select();
      } finally {
        button.disabled = false;
      }
    }
  });
}
