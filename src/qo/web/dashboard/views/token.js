// Asking for a token. It goes into the source's memory; closing the page forgets it.

import {h} from '../parts/dom.js';

export function tokenForm(loginUrl, authorize) {
  const input = h('input', {type: 'password', id: 'token', autocomplete: 'off', spellcheck: 'false', required: true,
    'aria-describedby': 'token-hint'});
  const problem = h('p', {class: 'bad', role: 'alert', hidden: true});
  const button = h('button', {type: 'submit', class: loginUrl ? 'button' : 'button primary'}, 'Open');
  const form = h('form', {class: 'token', on: {submit}},
    h('h2', {}, loginUrl ? 'This queue asks who you are' : 'This queue asks for a token'),
    loginUrl && h('p', {}, h('button', {type: 'button', class: 'button primary', 'data-do': 'login', on: {click: () => location.assign(loginUrl)}}, 'Log in')),
    loginUrl && h('p', {class: 'quiet'}, 'Or open it with a token.'),
    h('label', {for: 'token'}, 'Token'), input,
    h('p', {id: 'token-hint', class: 'quiet'}, 'Made by qo token create. With the scope read you may look, with admin also act. '
      + 'It stays in this page’s memory until you close or reload it.'),
    problem, button);
  queueMicrotask(() => (form.querySelector('[data-do=login]') ?? input).focus());
  return form;

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      await authorize(input.value.trim());
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
      input.select();
    } finally {
      button.disabled = false;
    }
  }
}
