// Shown for a URL that is not a view.

import {h} from '../parts/dom.js';

export function open() {
  const element = h('div', {class: 'state'}, h('h2', {}, 'Page not found'), h('p', {}, h('a', {href: '#/'}, 'Overview')));
  document.title = 'qo';
  return {element, refresh: async () => {}};
}
