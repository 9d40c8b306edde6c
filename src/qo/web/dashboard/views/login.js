// Explains why a login failed.

import {h} from '../parts/dom.js';
import {loginButton} from './credential_form.js';

// The URL contains only one of these names, so that a link cannot show any other text here.
const PROBLEMS = {
  provider_down: ['The identity provider does not respond', 'It may be down, or its configuration does not match this server. The log of the server has the details. A token still opens this page.'],
  state: ['This login does not belong to this browser', 'It took longer than ten minutes, or was started in another browser. Log in again.'],
  denied: ['The identity provider rejected the login', 'You may have declined, or you are not allowed to use this queue.'],
  invalid: ['The response of the identity provider is not valid', 'It was used before, has expired, or belongs to another login. Log in again.'],
  no_role: ['You have no role here', 'You are logged in at the identity provider, but none of your groups has a role for this queue. Ask an administrator to add one (qo serve --oidc-role).'],
  not_set_up: ['Logins are not configured', 'This server has no identity provider (qo serve --oidc-issuer). Open the page with a token.'],
  store: ['The store does not respond', 'The login failed because the store of the queue is unreachable. Try again in a moment.'],
};

export function open({source, to}) {
  document.title = 'Log in · qo';
  const [title, advice] = PROBLEMS[to.params.get('problem')] ?? ['You are logged out', ''];
  const element = h('div', {class: 'state', role: 'alert', 'data-problem': to.params.get('problem') ?? 'none'},
    h('h2', {}, title), h('p', {}, advice),
    h('p', {}, source.loginUrl ? loginButton(source.loginUrl) : null,
      ' ', h('a', {class: 'button', href: '#/'}, 'Overview')));
  return {element, refresh: async () => {}};
}
