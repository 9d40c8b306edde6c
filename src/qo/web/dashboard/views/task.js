import {h} from '../parts/dom.js';
export function open({source}) { const element = h('pre', {}, '…'); return {element, async refresh() { element.textContent = JSON.stringify(await source.overview(), null, 2); }}; }
