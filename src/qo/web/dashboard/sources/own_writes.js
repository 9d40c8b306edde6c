// A compare-and-set write with a reliable outcome, as in qo/buckets/own_writes.py. After a lost response, the write id in the
// stored document tells whether the write was made.

import {StoreError} from './s3.js';

const MAX_ATTEMPTS = 6;
const FIRST_DELAY = 100; // milliseconds

/** Returns the new ETag. Throws `conflict` if the write was not made, `unknown` if that cannot be known. */
export async function putDocument(s3, key, text, {over, isOurs}) {
  let suspect = false;
  for (let attempt = 1; ; attempt += 1) {
    try {
      const etag = suspect ? await look(s3, key, text, over, isOurs) : null;
      return etag ?? (await s3.put(key, text, {over}));
    } catch (error) {
      if (error.code === 'conflict' && suspect && !error.seen) continue; // an earlier attempt may have been written
      if (!['busy', 'no_answer'].includes(error.code) || attempt === MAX_ATTEMPTS) throw lastWord(error, key, suspect);
      suspect ||= !error.certain;
    }
    await new Promise((go) => setTimeout(go, FIRST_DELAY * 2 ** (attempt - 1) * (0.5 + Math.random() / 2)));
  }
}

/** The ETag if our write was made, null if it was not made yet. */
async function look(s3, key, text, over, isOurs) {
  const stored = await s3.get(key);
  if (stored === null && over === null) return null;
  if (stored === null) throw new StoreError('unknown', `${key} was deleted; it is unknown whether the write was made`);
  if (stored.etag === over) return null;
  if (stored.text === text) return stored.etag;
  const ours = isOurs(stored.text);
  if (ours === null) throw new StoreError('unknown', `${key} has changed too often; it is unknown whether the write was made`);
  if (ours) return stored.etag;
  throw Object.assign(new StoreError('conflict', `${key} was written by another process`), {seen: true});
}

function lastWord(error, key, suspect) {
  const certain = error.certain !== false && !suspect;
  if (certain || error.code === 'conflict' || error.code === 'unknown') return error;
  return new StoreError('unknown', `it is unknown whether ${key} was written: ${error.message}`);
}
