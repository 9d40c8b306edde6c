// The frame around every view: title, navigation, live state, theme.

import {fill, h} from './dom.js';
import {sentence} from './format.js';
import {helpDialog} from './help.js';
import {icon} from './icons.js';
import {complain, toasts} from './toast.js';

const PLACES = [['overview', '#/', 'Overview'], ['tasks', '#/tasks', 'Tasks'], ['batches', '#/batches', 'Batches'], ['workflows', '#/workflows', 'Workflows'], ['workers', '#/workers', 'Workers'], ['schedules', '#/schedules', 'Schedules'], ['limits', '#/limits', 'Limits'], ['audit', '#/audit', 'Audit']];
const MAX_TITLE = 11; // characters of a URL for which a window of 1280 pixels has room
const STATES = {
  live: ['Live', 'Changes appear as they happen. Click to pause.'],
  polling: ['Every 5 s', 'The page updates every few seconds. Click to pause.'],
  away: ['Reconnecting', 'The connection was lost. Reconnecting. Click to pause.'],
  paused: ['Updates paused', 'This page does not update. Click to resume.'],
};

export function frame(source, live) {
  const main = h('main', {id: 'main', tabindex: '-1'});
  const banner = h('div', {class: 'banner', role: 'alert', hidden: true});
  const links = PLACES.map(([name, href, label]) => h('a', {href, 'data-view': name}, icon(name), h('span', {}, label)));
  const title = h('span', {class: 'where'});
  const mode = h('span', {class: 'mode', hidden: true}, 'read-only');
  const liveButton = h('button', {type: 'button', class: 'live', on: {click: () => live.toggle()}}, h('i'), h('span'));
  live.onState = (state) => {
    const [label, hint] = STATES[state];
    liveButton.dataset.state = state;
    liveButton.title = hint;
    liveButton.lastChild.textContent = label;
    liveButton.setAttribute('aria-pressed', String(state === 'paused'));
  };
  live.onState(live.state);
  const user = h('span', {class: 'user', hidden: true});
  const leave = h('button', {type: 'button', class: 'button small', 'data-do': 'logout', hidden: true, on: {click: () => logOut(source)}}, 'Log out');
  const renew = () => {
    links.find((link) => link.dataset.view === 'audit').hidden = !source.can.audit;
    links.find((link) => link.dataset.view === 'workflows').hidden = !source.can.workflows;
    links.find((link) => link.dataset.view === 'limits').hidden = !source.fleetLimits;
    for (const name of ['batches', 'schedules']) links.find((link) => link.dataset.view === name).hidden = !source[name];
    user.hidden = leave.hidden = !source.user;
    user.textContent = user.title = source.user ?? '';
    title.textContent = shortTitle(source.title);
    title.title = source.title;
    mode.hidden = source.can.write || !source.title; // unknown before the title is loaded
  };
  renew();
  const element = h('div', {class: 'frame'},
    h('button', {type: 'button', class: 'skip', on: {click: () => main.focus()}}, 'Skip to content'),
    h('header', {class: 'top'},
      h('a', {href: '#/', class: 'brand', 'aria-label': 'qo, overview'}, h('b', {}, 'qo')),
      title, mode,
      h('nav', {'aria-label': 'Views'}, links),
      h('div', {class: 'tools'}, liveButton, user, leave,
        h('button', {type: 'button', class: 'icon-button', 'aria-label': 'Light or dark', title: 'Light or dark', on: {click: switchTheme}}, icon('theme')),
        h('button', {type: 'button', class: 'icon-button', 'aria-label': 'Keyboard shortcuts', title: 'Keyboard shortcuts (?)', on: {click: helpDialog}}, icon('help')))),
    banner, main, toasts());
  return {
    element,
    renew,
    put: (view) => main.replaceChildren(view),
    mark(name) {
      const place = {task: 'tasks', batch: 'batches', workflow: 'workflows'}[name] ?? name;
      for (const link of links) {
        if (link.dataset.view === place) link.setAttribute('aria-current', 'page');
        else link.removeAttribute('aria-current');
      }
    },
    problem(error, retry) {
      banner.hidden = error === null;
      if (error === null) return;
      fill(banner, h('span', {}, `This page may be out of date: ${sentence(error.message || String(error))}`),
        h('button', {type: 'button', class: 'button small', on: {click: retry}}, 'Try again'));
    },
  };
}

// Continues at the provider, to end the session there as well, or reloads the page.
async function logOut(source) {
  try {
    const provider = await source.logout();
    location.assign(provider ?? '#/login');
    if (!provider) location.reload();
  } catch (error) {
    complain(error);
  }
}

// The end of a URL, which tells stores apart; any other title as it is.
function shortTitle(title) {
  const [, path] = title.split('://');
  if (!path) return title;
  const parts = path.split('?')[0].split('/').filter(Boolean).slice(-2);
  const both = parts.join('/');
  return both.length > MAX_TITLE ? parts.at(-1) : both;
}

// Applies until the page is closed; nothing is stored.
function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
}
