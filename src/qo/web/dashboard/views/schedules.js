// Schedules: their next five fire times and last results, and buttons to pause, resume and run one.

import {h, keyed, show} from '../parts/dom.js';
import {duration, instant, number, plural, sentence, shortId} from '../parts/format.js';
import {icon} from '../parts/icons.js';
import {address, taskAddress} from '../parts/router.js';
import {empty} from '../parts/states.js';
import {badge} from '../parts/status.js';
import {ago} from '../parts/clock.js';
import {complain, say} from '../parts/toast.js';

const RESULTS_SHOWN = 5;
const ORDER = ['active', 'paused', 'ended', 'inactive'];
const OVERLAPS = {allow: 'allowed', skip: 'skipped while a task is unfinished', cancel: 'cancels an unfinished task'};

export function open({source, refresh}) {
  document.title = 'Schedules · qo';
  const list = h('div', {class: 'workers'});
  const nothing = h('div');
  const summary = h('p', {class: 'summary', role: 'status'});
  const element = h('div', {}, h('div', {class: 'title'}, h('h1', {}, 'Schedules'), summary), list, nothing);
  return {
    element,
    async refresh() {
      const {schedules, isComplete} = source.schedules ? await source.schedules() : {schedules: [], isComplete: true};
      schedules.sort((one, other) => ORDER.indexOf(one.status) - ORDER.indexOf(other.status) || one.name.localeCompare(other.name));
      keyed(list, schedules, {key: (each) => each.name, stamp: (each) => [each, source.can.write], build: card});
      show(nothing, [schedules.length], ([count]) => (count ? null
        : empty('No schedules', 'Put @app.schedule above @app.task, or run: qo schedules add')));
      const active = schedules.filter((each) => each.status === 'active').length;
      const rest = isComplete ? '' : '; this page does not show all schedules';
      const hint = source.changeSchedule ? '' : '; qo schedules shows all with their next fire times';
      summary.textContent = schedules.length ? `${plural(schedules.length, 'schedule')}, ${number(active)} active${rest}${hint}` : '';
    },
  };

  function card(schedule) {
    const {name, status} = schedule;
    return h('article', {class: `card worker schedule ${status}`, 'data-schedule': name},
      h('header', {}, h('h2', {}, name), badge(status), source.can.write && source.changeSchedule ? h('span', {class: 'buttons'}, buttons(schedule)) : null),
      h('dl', {class: 'facts'},
        fact('When', h('code', {}, timing(schedule))),
        fact('Task', h('a', {href: address('tasks', {type: schedule.type})}, schedule.type)),
        fact('Queue', schedule.queue),
        fact('Defined', schedule.source === 'code' ? 'in code' : 'at run time'),
        fact('Overlap', OVERLAPS[schedule.overlap]),
        fact('Catch-up', schedule.catch_up),
        schedule.jitter ? fact('Jitter', `up to ${duration(schedule.jitter)}`) : null,
        schedule.start_at ? fact('From', instant(schedule.start_at)) : null,
        schedule.end_at ? fact('Until', instant(schedule.end_at)) : null),
      schedule.inactive_because ? h('p', {class: 'notice', 'data-inactive': true}, sentence(schedule.inactive_because)) : null,
      schedule.next_fires.length ? h('div', {}, h('h3', {}, nextTitle(schedule)), h('ul', {'data-list': 'next'}, schedule.next_fires.map((at) => h('li', {}, h('span', {}, instant(at)), h('span', {class: 'quiet'}, ago(at)))))) : null,
      schedule.recent.length ? h('div', {}, h('h3', {}, 'Last results'),
        h('ul', {'data-list': 'recent'}, schedule.recent.slice(0, RESULTS_SHOWN).map(result))) : null);
  }

  function buttons({name, status}) {
    return [
      status === 'paused' ? button('resume', 'Resume', name) : null,
      status === 'active' ? button('pause', 'Pause', name) : null,
      button('run', 'Run now', name),
    ];
  }

  function button(action, label, name) {
    return h('button', {type: 'button', class: 'button small', 'data-do': action, 'aria-label': `${label}: ${name}`, on: {click: () => act(action, name)}},
      icon(action === 'run' ? 'replay' : action), label);
  }

  async function act(action, name) {
    try {
      await source.changeSchedule(name, action);
      say({pause: `Schedule ${name} paused.`, resume: `Schedule ${name} resumed.`, run: `A task of ${name} was submitted.`}[action]);
      await refresh();
    } catch (error) {
      complain(error);
    }
  }
}

function result(fire) {
  return h('li', {},
    ago(fire.at), ' ', badge(fire.task_status ?? fire.outcome),
    fire.count > 1 ? ` ${number(fire.count)} times` : null, ' ',
    fire.task_id ? h('a', {href: taskAddress(fire.task_id)}, h('code', {}, shortId(fire.task_id))) : null,
    fire.by_hand ? ' manual run' : null,
    fire.reason ? h('span', {class: 'quiet'}, ` ${fire.reason}`) : null);
}

// A cron expression has its own zone, and this page shows the times of the browser's.
function nextTitle({cron, timezone}) {
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return cron && own && timezone !== own ? `Next, in ${own} time` : 'Next';
}

const timing = ({cron, every, timezone}) => (cron ? `${cron} ${timezone}` : `every ${duration(every)}`);
const fact = (name, value) => h('div', {}, h('dt', {}, name), h('dd', {}, value));
