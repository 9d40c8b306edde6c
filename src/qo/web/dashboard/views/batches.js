// Batches: tasks that were submitted together, newest first.

import {h, keyed, show} from '../parts/dom.js';
import {batchProgress, batchSummary} from '../parts/batch_progress.js';
import {number, plural} from '../parts/format.js';
import {batchAddress} from '../parts/router.js';
import {empty} from '../parts/states.js';

export function open({source}) {
  document.title = 'Batches · qo';
  const list = h('div', {class: 'workers'});
  const nothing = h('div');
  const summary = h('p', {class: 'summary', role: 'status'});
  const element = h('div', {}, h('div', {class: 'title'}, h('h1', {}, 'Batches'), summary), list, nothing);
  return {
    element,
    async refresh() {
      const batches = source.batches ? await source.batches() : [];
      keyed(list, batches, {key: (each) => each.id, stamp: (each) => each, build: card});
      show(nothing, [batches.length], ([count]) => (count ? null
        : !source.batches ? empty('Batches need a server', 'This page reads the bucket directly. qo batch list shows the batches.') : empty('No batches among the newest tasks', 'Group tasks: with qo.batch("thumbnails", app): …', 'Or: qo submit --type resize --batch thumbnails-1')));
      const active = batches.filter((each) => each.done < each.total).length;
      summary.textContent = batches.length ? `${plural(batches.length, 'batch', 'batches')}, ${number(active)} unfinished` : '';
    },
  };
}

function card(batch) {
  return h('article', {class: 'card worker batch', 'data-batch': batch.id},
    h('header', {}, h('h2', {}, h('a', {href: batchAddress(batch.id)}, batch.id))),
    batchProgress(batch),
    h('p', {class: 'quiet'}, batchSummary(batch)));
}
