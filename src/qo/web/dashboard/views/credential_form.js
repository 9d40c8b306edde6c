// Forms for a token of a server, or for the code of a static page. The input stays in the memory of the source until the
// page is closed.

import {h} from '../parts/dom.js';
import {problemLine, submit} from '../parts/submit.js';

/** `authorize(token)` throws if the token is not valid. */
export function tokenForm(loginUrl, authorize) {
  return secretForm({
    name: 'token', label: 'Token',
    title: loginUrl ? 'Log in to this queue' : 'This queue needs a token',
    above: loginUrl && [h('p', {}, loginButton(loginUrl)), h('p', {class: 'quiet'}, 'Or use a token.')],
    hint: 'Create one with: qo token create. The scope read shows tasks, operate also changes them. '
      + 'The token stays in the memory of this page until you close or reload it.',
    send: authorize,
  });
}

/** Shows a form in `root` until a pasted code opens the source, and returns it. A code is not kept in the history, unlike a link. */
export function askForCode(root, open) {
  return new Promise((opened) => {
    root.replaceChildren(h('main', {}, secretForm({
      name: 'code', label: 'Code',
      title: 'This page needs credentials',
      hint: 'Create a code with: qo dashboard link --paste. A complete link works, too. '
        + 'The code stays in the memory of this page until you close or reload it, and is not kept in the history.',
      send: async (code) => opened(await open(code.split('#').at(-1))),
    })));
  });
}

export function loginButton(loginUrl) {
  return h('button', {type: 'button', class: 'button primary', 'data-do': 'login', on: {click: () => location.assign(loginUrl)}}, 'Log in');
}

function secretForm({name, label, title, above = null, hint, send}) {
  const input = h('input', {type: 'password', id: name, autocomplete: 'off', spellcheck: 'false', required: true,
    'aria-describedby': `${name}-hint`});
  const problem = problemLine();
  const button = h('button', {type: 'submit', class: above ? 'button' : 'button primary'}, 'Open');
  const form = h('form', {class: 'token', on: {submit: async (event) => {
    event.preventDefault();
    if (!(await submit(button, problem, () => send(input.value.trim())))) input.select();
  }}},
    h('h2', {}, title), above,
    h('label', {for: name}, label), input,
    h('p', {id: `${name}-hint`, class: 'quiet'}, hint),
    problem, button);
  queueMicrotask(() => (form.querySelector('[data-do=login]') ?? input).focus());
  return form;
}
