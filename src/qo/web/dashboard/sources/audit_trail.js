// Records the actions of this page in the audit trail, as in qo/audit. Every record is a new note that is never changed, so
// credentials that can only create objects under audit/ are sufficient.

import {sealed} from './checksum.js';
import {newWriteId} from './rules.js';
import {base64Of} from './values.js';

const MAX_IDS = 20;
const MAX_TEXT = 500; // characters

export class AuditTrail {
  constructor(s3, who) {
    this.s3 = s3;
    this.who = who;
  }

  /** A failure to write the record does not undo the action; it is reported on the console. */
  async record(action, {target = '', ids = [], number = null} = {}) {
    const at = this.s3.clock.now();
    const record = {id: newWriteId(), at, actor: 'page', who: this.who, action, target: target.slice(0, MAX_TEXT), task_ids: ids.slice(0, MAX_IDS), number};
    const name = `audit/new/${String(Math.floor(at * 1000)).padStart(13, '0')}-${newWriteId().slice(0, 12)}`;
    const data = base64Of(JSON.stringify({records: [record], dropped: 0}));
    try {
      await this.s3.put(`${name}.json`, sealed(JSON.stringify({name, data, writes: [newWriteId()]})), {over: null});
    } catch (error) {
      console.warn('cannot write to the audit trail:', record, error.message);
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
