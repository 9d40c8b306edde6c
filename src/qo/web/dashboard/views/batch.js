// One batch: how many of its tasks have finished, how long the others may take, and links to them.

import {h, show} from '../parts/dom.js';
import {batchProgress, batchSummary} from '../parts/batch_progress.js';
import {number} from '../parts/format.js';
import {icon} from '../parts/icons.js';
import {address} from '../parts/router.js';
import {STATUSES} from '../parts/status.js';

export function open({source, to}) {
  const head = h('div');
  const figures = h('div', {class: 'card'});
  const element = h('div', {}, h('p', {class: 'way'}, h('a', {href: '#/batches'}, icon('back'), 'Batches')), head, figures);
  return {
    element,
    async refresh() {
      if (!source.batch) throw new Error('batches need a server: this page reads the bucket directly');
      const batch = await source.batch(to.id);
      document.title = `${batch.id} · qo`;
      show(head, [batch.id], () => h('div', {class: 'title'}, h('h1', {}, batch.id),
        h('p', {class: 'summary'}, h('a', {href: address('tasks', {batch: batch.id, status: STATUSES}), 'data-list': 'tasks'}, 'Show its tasks'))));
      show(figures, batch, () => drawn(batch));
    },
  };
}

function drawn(batch) {
  return [
    batchProgress(batch),
    h('p', {role: 'status', 'data-summary': true}, batchSummary(batch)),
    h('dl', {class: 'figures'}, STATUSES.map((status) => h('div', {class: status, 'data-count': status},
      h('dt', {}, h('a', {href: address('tasks', {batch: batch.id, status})}, status)), h('dd', {}, h('b', {}, number(batch[status])))))),
  ];
}
