// Asking for a secret: a token of a server, or the code of a page without one. What is entered stays in the memory of the
// source; closing the page forgets it.

import {h} from '../parts/dom.js';
import {problemLine, submit} from '../parts/submit.js';

/** `authorize(token)` throws if the token opens nothing. */
export function tokenForm(loginUrl, authorize) {
  return secretForm({
    name: 'token', label: 'Token',
    title: loginUrl ? 'This queue asks who you are' : 'This queue asks for a token',
    above: loginUrl && [h('p', {}, loginButton(loginUrl)), h('p', {class: 'quiet'}, 'Or open it with a token.')],
    hint: 'Made by qo token create. With the scope read you may look, with operate also act. '
      + 'It stays in this page’s memory until you close or reload it.',
    send: authorize,
  });
}

/** Show a form in `root` until a pasted code opens the source; the source. A code gets into no history, unlike a link. */
export function askForCode(root, open) {
  return new Promise((opened) => {
    root.replaceChildren(h('main', {}, secretForm({
      name: 'code', label: 'Code',
      title: 'This page keeps no credentials',
      hint: 'Made by qo dashboard link --paste. A whole link will do, too. '
        + 'It stays in this page’s memory until you close or reload it, and in no history.',
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
