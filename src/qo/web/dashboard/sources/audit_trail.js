// What this page did, in the store's audit trail, as in qo/audit: a note is created under a name of its own and never
// changed, so credentials that may create and do nothing else below audit/ are enough.

import {sealed} from './checksum.js';
import {newWriteId} from './rules.js';
import {base64Of} from './values.js';

const MOST_IDS = 20;
const MOST_TEXT = 500; // characters

export class AuditTrail {
  constructor(s3, who) {
    this.s3 = s3;
    this.who = who;
  }

  /** The action stands although its record cannot be written; then the console says so. */
  async record(action, {target = '', ids = [], number = null} = {}) {
    const at = this.s3.clock.now();
    const record = {id: newWriteId(), at, actor: 'page', who: this.who, action, target: target.slice(0, MOST_TEXT), task_ids: ids.slice(0, MOST_IDS), number};
    const name = `audit/new/${String(Math.floor(at * 1000)).padStart(13, '0')}-${newWriteId().slice(0, 12)}`;
    const data = base64Of(JSON.stringify({records: [record], dropped: 0}));
    try {
      await this.s3.put(`${name}.json`, sealed(JSON.stringify({name, data, writes: [newWriteId()]})), {over: null});
    } catch (error) {
      console.warn('not in the audit trail:', record, error.message);
    }
  }
}

/** `queue mail, type crawl` */
export function inWords(options) {
  return Object.entries(options)
    .filter(([, value]) => value !== undefined && value !== null && value !== '' && !(Array.isArray(value) && !value.length))
    .map(([name, value]) => `${name} ${Array.isArray(value) ? value.join(' ') : value}`)
    .join(', ');
}
