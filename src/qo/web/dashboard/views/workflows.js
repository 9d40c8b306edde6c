// Workflows, newest first: name, state, progress.

import {h, keyed, show} from '../parts/dom.js';
import {ago} from '../parts/clock.js';
import {number, plural} from '../parts/format.js';
import {workflowAddress} from '../parts/router.js';
import {empty} from '../parts/states.js';
import {badge} from '../parts/status.js';
import {workflowProgress, workflowSummary} from '../parts/workflow_progress.js';

const MIN_AGE = 4000; // milliseconds; the server reads all tasks of the listed workflows

export function open({source}) {
  document.title = 'Workflows · qo';
  let readAt = -MIN_AGE;
  const list = h('div', {class: 'workers'});
  const nothing = h('div');
  const summary = h('p', {class: 'summary', role: 'status'});
  const element = h('div', {}, h('div', {class: 'title'}, h('h1', {}, 'Workflows'), summary), list, nothing);
  return {
    element,
    async refresh() {
      if (performance.now() - readAt < MIN_AGE) return;
      readAt = performance.now();
      const workflows = source.workflows ? await source.workflows() : [];
      keyed(list, workflows, {key: (each) => each.id, stamp: (each) => each, build: card});
      show(nothing, [workflows.length], ([count]) => (count ? null : empty(...hints(source))));
      const active = workflows.filter((each) => each.status === 'running').length;
      summary.textContent = workflows.length ? `${plural(workflows.length, 'workflow')}, ${number(active)} running` : '';
    },
  };
}

function hints(source) {
  if (!source.workflows) return ['Workflows need a server', 'This page reads the bucket directly. qo serve shows the graph of a workflow, qo workflow show ID draws it in the terminal.'];
  return ['No workflows among the newest tasks', 'Build one: flow = app.workflow("import"), flow.add(task.s(…), after=[…]), flow.submit()', 'Or: qo.chain(fetch.s(url), merge.s()).enqueue()'];
}

function card(workflow) {
  return h('article', {class: 'card worker workflow', 'data-workflow': workflow.id},
    h('header', {}, h('h2', {}, h('a', {href: workflowAddress(workflow.id)}, workflow.name)), badge(workflow.status), h('span', {class: 'quiet small'}, ago(workflow.created_at))),
    workflowProgress(workflow),
    h('p', {class: 'quiet'}, workflowSummary(workflow)),
    h('p', {}, h('code', {class: 'id quiet'}, workflow.id)));
}
