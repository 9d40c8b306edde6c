// One workflow: its graph with live states, the critical path, and a table of its tasks.

import {fill, h, show} from '../parts/dom.js';
import {ago} from '../parts/clock.js';
import {duration, firstLine, number, plural} from '../parts/format.js';
import {STATES, graph, stateText} from '../parts/graph.js';
import {icon} from '../parts/icons.js';
import {address, taskAddress} from '../parts/router.js';
import {STATUSES, badge} from '../parts/status.js';
import {copy} from '../parts/tree.js';
import {changeWorkflow, workflowButton} from '../parts/workflow_actions.js';
import {workflowProgress, workflowSummary} from '../parts/workflow_progress.js';

const LARGE_INTERVAL = 4000; // milliseconds between two reads of a workflow that is drawn as groups
const ENDED = ['completed', 'failed', 'cancelled'];

export function open({source, to, refresh}) {
  const {id} = to;
  let workflow = null;
  let drawing = null;
  let readAt = 0;
  const head = h('div');
  const figures = h('div');
  const place = h('div');
  const legend = h('div', {class: 'legend'});
  const table = h('div', {class: 'scroll'});
  const tasks = h('section', {class: 'card', 'data-section': 'tasks'}, h('header', {}, h('h2', {}, 'Tasks'), h('span')), table);
  const element = h('div', {class: 'column'},
    h('div', {}, h('p', {class: 'way'}, h('a', {href: '#/workflows'}, icon('back'), 'Workflows')), head),
    h('section', {class: 'card'}, figures),
    h('section', {class: 'card', 'data-section': 'graph'}, h('header', {}, h('h2', {}, 'Graph'), legend), place),
    tasks);

  return {
    element,
    async refresh() {
      if (workflow?.is_grouped && performance.now() - readAt < LARGE_INTERVAL) return;
      if (!source.workflow) throw new Error('workflows need a server: this page reads the bucket directly');
      workflow = await source.workflow(id);
      readAt = performance.now();
      draw();
    },
  };

  async function perform(action, start) {
    if (!(await changeWorkflow(source, id, action, start))) return;
    readAt = 0;
    refresh();
  }

  function draw() {
    document.title = `${workflow.name} · qo`;
    const {counts} = workflow;
    show(head, [workflow.id, workflow.status, counts.failed, counts.cancelled, source.can.change_workflows], drawHead);
    show(figures, [counts, workflow.total, workflow.critical_tasks, workflow.critical_seconds, workflow.is_estimate, workflow.dropped], drawFigures);
    show(legend, STATES.filter((state) => counts[state]), (states) => [states.map((state) => h('span', {class: `key ${state}`}, h('i'), state)), h('span', {class: 'key critical'}, h('i'), 'critical path')]);
    if (!drawing?.update(workflow)) {
      drawing = graph(workflow);
      fill(place, workflow.is_grouped ? h('p', {class: 'quiet small'}, 'This workflow is large. Each box is a group of tasks; click it to list them.') : null, drawing.element);
    }
    tasks.querySelector('header > span').textContent = workflow.rows.length < workflow.total ? `${number(workflow.rows.length)} of ${number(workflow.total)}: those that failed, run or wait come first` : '';
    show(table, [workflow.rows, source.can.change_workflows], drawTable);
  }

  function drawHead() {
    const {counts, status} = workflow;
    const open = status === 'running' || status === 'waiting';
    return h('div', {class: 'title'}, h('h1', {}, workflow.name, ' ', badge(status)),
      h('p', {class: 'summary'}, h('code', {class: 'id'}, id), h('button', {type: 'button', class: 'icon-button', 'aria-label': 'Copy the id', on: {click: () => copy(id)}}, icon('copy'))),
      source.can.change_workflows ? h('div', {class: 'buttons'},
        counts.failed || counts.cancelled ? workflowButton('replay', () => perform('replay')) : null,
        open ? workflowButton('cancel', () => perform('cancel')) : null) : null);
  }

  function drawFigures() {
    const {critical_tasks: count, critical_seconds: seconds, is_estimate: isEstimate, dropped} = workflow;
    return [
      workflowProgress(workflow),
      h('p', {role: 'status', 'data-summary': true}, workflowSummary(workflow)),
      h('dl', {class: 'facts'}, [
        ['Created', ago(workflow.created_at)],
        ['Critical path', `${plural(count, 'task')}, ${isEstimate ? 'about ' : ''}${duration(seconds)}`],
        ['Key', workflow.idempotency_key && h('code', {}, workflow.idempotency_key)],
        ['Dropped', dropped ? `${plural(dropped, 'task')}, added by attempts that did not complete` : null],
        ['Tasks', h('a', {href: address('tasks', {batch: id, status: STATUSES}), 'data-list': 'tasks'}, 'Show in the task list')],
      ].filter(([, value]) => value).map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value)))),
    ];
  }

  function drawTable() {
    const known = new Map(workflow.rows.map((row) => [row.index, row]));
    return h('table', {class: 'plain steps'},
      h('thead', {}, h('tr', {}, ['Task', 'State', 'Attempts', 'Waiting for', ''].map((name) => h('th', {scope: 'col', class: name === 'Attempts' ? 'number' : null}, name)))),
      h('tbody', {}, workflow.rows.map((row) => h('tr', {'data-step': row.index},
        h('th', {scope: 'row'}, h('span', {class: 'quiet number-of'}, `${row.index} `), h('a', {href: taskAddress(row.task_id)}, row.type),
          row.is_critical ? h('span', {class: 'tag critical', title: 'on the critical path'}, 'critical') : null,
          row.error && row.state !== 'completed' ? h('p', {class: row.state === 'failed' ? 'error-line' : 'error-line quiet'}, firstLine(row.error, 140)) : null),
        h('td', {}, badge(row.state), h('span', {class: 'quiet small'}, ` ${detail(row)}`)),
        h('td', {class: 'number'}, number(row.attempt)),
        h('td', {}, waits(row, known)),
        h('td', {class: 'row-tools'}, source.can.change_workflows && ENDED.includes(row.state)
          ? workflowButton('replay_from', () => perform('replay_from', {id: row.task_id, type: row.type}), {small: true, of: row.type}) : null)))));
  }
}

const detail = (row) => (row.state === 'blocked' ? '' : stateText(row).split(' · ')[1] ?? '');

function waits(row, known) {
  const named = row.waits_for.map((index) => known.get(index)).filter(Boolean);
  const more = row.waits - named.length;
  return [
    named.map((parent, at) => [at ? ', ' : '', h('a', {href: taskAddress(parent.task_id)}, `${parent.index} ${parent.type}`)]),
    more > 0 ? `${named.length ? ' and ' : ''}${plural(more, named.length ? 'other' : 'task')}` : '',
  ];
}
