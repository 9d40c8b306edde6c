// Where a person lands whom the identity provider, or this server, did not let in: what happened, and the way back.

import {h} from '../parts/dom.js';
import {loginButton} from './credential_form.js';

// The address holds one of these names and nothing else, so nobody can put words into this page's mouth.
const PROBLEMS = {
  provider_down: ['The identity provider does not answer', 'It may be down, or not set up as this server expects. The server’s log says what it answered. A token still opens this page.'],
  state: ['This login does not belong to this browser', 'It took longer than ten minutes, was begun in another window, or by somebody else. Log in again.'],
  denied: ['The identity provider said no', 'You may have declined, or it does not let you use this queue.'],
  invalid: ['The identity provider’s answer cannot be trusted', 'It was used before, has expired, or was meant for somebody else. Log in again.'],
  no_role: ['You have no role here', 'You are who you say, but none of your groups may use this queue. Ask the people who run it to give one of your groups a role (qo serve --oidc-role).'],
  not_set_up: ['Nobody can log in here', 'This server knows no identity provider (qo serve --oidc-issuer). Open the page with a token.'],
  store: ['The store does not answer', 'You could not be logged in, because the queue’s store cannot be reached now. Try again in a moment.'],
};

export function open({source, to}) {
  document.title = 'Log in · qo';
  const [title, advice] = PROBLEMS[to.params.get('problem')] ?? ['You are logged out', ''];
  const element = h('div', {class: 'state', role: 'alert', 'data-problem': to.params.get('problem') ?? 'none'},
    h('h2', {}, title), h('p', {}, advice),
    h('p', {}, source.loginUrl ? loginButton(source.loginUrl) : null,
      ' ', h('a', {class: 'button', href: '#/'}, 'To the overview')));
  return {element, refresh: async () => {}};
}
