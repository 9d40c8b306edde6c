// The format of the layout `tasks`, as in qo/engines/object_per_task/layout.py. It is read again after a while.

import {StoreError} from './s3.js';

const KEY = 'format.json';
const FORMAT = 2; // the newest format that this page supports
const CHECK_INTERVAL = 10_000; // milliseconds

export class StoredFormat {
  #checkedAt = -Infinity;

  constructor(s3) {
    this.s3 = s3;
  }

  /** Call before a read or write. Throws if a newer version of qo has written a format that this page does not support. */
  async check() {
    if (performance.now() - this.#checkedAt < CHECK_INTERVAL) return;
    const askedAt = performance.now();
    const stored = await this.s3.get(KEY);
    const {format = 0, since = 0, qo = ''} = stored ? formatIn(stored.text) : {};
    if ((since || format) > FORMAT) {
      const needed = qo ? `publish the page of qo ${qo} or newer` : 'publish the page of a newer qo';
      throw new StoreError('unreadable', `This queue was written by a newer qo (format ${format}); ${needed}.`);
    }
    this.#checkedAt = askedAt;
  }
}

function formatIn(text) {
  try {
    return Object(JSON.parse(text));
  } catch (error) {
    throw new StoreError('unreadable', `${KEY} does not hold a format: ${error.message}`);
  }
}
