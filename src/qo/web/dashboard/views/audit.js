// The audit trail of the store, newest first.

import {h, keyed, show} from '../parts/dom.js';
import {number, plural, shortId} from '../parts/format.js';
import {icon} from '../parts/icons.js';
import {address, go, taskAddress} from '../parts/router.js';
import {empty} from '../parts/states.js';
import {ago} from '../parts/clock.js';

const LIMIT = 50;
const IDS_SHOWN = 3;
const COLUMNS = ['When', 'Who', 'Action', 'Tasks', 'Details', 'From'];
const ACTIONS = ['replay', 'retry', 'run-now', 'reschedule', 'priority', 'cancel', 'archive', 'delete', 'pause', 'resume', 'limit', 'drain', 'controls', 'workflow.cancel', 'workflow.replay', 'token.create', 'token.revoke', 'token.reset', 'migrate', 'dashboard.publish', 'dashboard.link', 'bucket-setup', 'login', 'logout', 'session.end', 'schedule.add', 'schedule.pause', 'schedule.resume', 'schedule.run', 'schedule.remove'];
const AGES = [['', 'at any time'], ['3600', 'in the last hour'], ['86400', 'in the last day'], ['604800', 'in the last week'], ['2592000', 'in the last 30 days']];

export function open({source, to}) {
  document.title = 'Audit · qo';
  let {params} = to;
  let cursor = null;
  const before = []; // cursors of the previous pages
  let at = ''; // position of the page
  const kind = h('select', {'aria-label': 'Action', on: {change}}, h('option', {value: ''}, 'all actions'), ACTIONS.map((name) => h('option', {value: name}, name)));
  const age = h('select', {'aria-label': 'When', on: {change}}, AGES.map(([value, label]) => h('option', {value}, label)));
  const who = h('input', {type: 'search', 'aria-label': 'Who', placeholder: 'token or user', on: {change}});
  const body = h('tbody');
  const table = h('table', {class: 'audit'}, h('thead', {}, h('tr', {}, COLUMNS.map((name) => h('th', {scope: 'col', class: name === 'Tasks' ? 'number' : null}, name)))), body);
  const nothing = h('div');
  const summary = h('p', {class: 'summary', role: 'status'});
  const previous = h('button', {type: 'button', class: 'button', on: {click: () => turn(before.pop())}}, icon('back'), 'Newer');
  const next = h('button', {type: 'button', class: 'button', on: {click: () => { before.push(at); turn(cursor); }}}, 'Older', icon('next'));
  const element = h('div', {},
    h('div', {class: 'title'}, h('h1', {}, 'Audit'), summary),
    h('div', {class: 'filters', role: 'search'}, h('div', {class: 'fields'}, kind, age, who)),
    h('div', {class: 'card flush'}, h('div', {class: 'scroll'}, table), nothing),
    h('nav', {class: 'pages', 'aria-label': 'Pages'}, previous, next));
  set();
  const view = {
    element,
    update(moved) {
      params = moved.params;
      at = '';
      before.length = 0;
      set();
      return true;
    },
    async refresh() {
      if (!source.audit) throw new Error('the audit trail needs a server; qo audit shows it, too');
      const asked = {action: params.get('action'), who: params.get('who'), task: params.get('task'), since: params.get('since'), limit: LIMIT, cursor: at};
      const page = await source.audit(asked);
      cursor = page.cursor;
      keyed(body, page.actions, {key: (each) => each.id, stamp: (each) => each, build: row});
      table.hidden = !page.actions.length;
      show(nothing, [page.actions.length], ([count]) => (count ? null : empty('No actions', 'Actions of tokens, users and the command line are kept for 90 days.')));
      previous.disabled = !before.length;
      next.disabled = cursor === null;
      summary.textContent = [params.get('task') && `on task ${shortId(params.get('task'))}`, page.dropped && `${plural(page.dropped, 'action')} of this time were deleted because there were too many`, page.unreadable && `${plural(page.unreadable, 'record')} cannot be read`].filter(Boolean).join(', ');
    },
  };
  return view;

  function change() {
    go(address('audit', {action: kind.value, since: age.value, who: who.value.trim(), task: params.get('task')}));
  }

  function set() {
    kind.value = params.get('action') ?? '';
    age.value = params.get('since') ?? '';
    who.value = params.get('who') ?? '';
  }

  function turn(place) {
    at = place;
    view.refresh();
  }
}

function row(each) {
  return h('tr', {'data-action': each.action},
    h('td', {'data-label': 'When'}, ago(each.at)),
    h('td', {'data-label': 'Who'}, h('span', {class: 'tag'}, each.actor), each.who === each.actor ? null : [' ', h('span', {title: each.who}, each.who)],
      each.verified ? null : h('span', {class: 'quiet', title: 'Written with credentials that can only add records, so its content is not verified.'}, ' · unverified')),
    h('th', {scope: 'row', class: /^(delete|token)/.test(each.action) ? 'bad' : null}, each.action,
      each.outcome === 'unknown' ? h('span', {class: 'quiet', title: 'The store failed; the change may have been made.'}, ' · outcome unknown') : null),
    h('td', {'data-label': 'Tasks', class: 'number'}, each.number === null ? '' : number(each.number)),
    h('td', {'data-label': 'Details'}, each.target, each.target && each.task_ids.length ? ' ' : null, ids(each)),
    h('td', {'data-label': 'From', class: 'quiet'}, each.origin));
}

function ids({task_ids: all}) {
  const more = all.length - IDS_SHOWN;
  return [all.slice(0, IDS_SHOWN).map((id) => [h('a', {href: taskAddress(id), title: id}, h('code', {}, shortId(id))), ' ']), more > 0 ? `and ${more} more` : null];
}
