// A compare-and-set write whose answer is the truth, as in qo/buckets/own_writes.py: an answer that was lost is looked
// up in the store, by the write id every document carries.

import {StoreError} from './s3.js';

const TRIES = 6;
const FIRST_PAUSE = 100; // milliseconds

/** The new ETag. Throws `conflict`: it did not land and never will; `unknown`: nobody can say. */
export async function putDocument(s3, key, text, {over, isOurs}) {
  let suspect = false;
  for (let attempt = 1; ; attempt += 1) {
    try {
      const etag = suspect ? await look(s3, key, text, over, isOurs) : null;
      return etag ?? (await s3.put(key, text, {over}));
    } catch (error) {
      if (error.code === 'conflict' && suspect && !error.seen) continue; // an earlier try may have landed meanwhile
      if (!['busy', 'no_answer'].includes(error.code) || attempt === TRIES) throw lastWord(error, key, suspect);
      suspect ||= !error.certain;
    }
    await new Promise((go) => setTimeout(go, FIRST_PAUSE * 2 ** (attempt - 1) * (0.5 + Math.random() / 2)));
  }
}

/** The ETag if our write landed, null if it has not yet. */
async function look(s3, key, text, over, isOurs) {
  const stored = await s3.get(key);
  if (stored === null && over === null) return null;
  if (stored === null) throw new StoreError('unknown', `${key} is gone; whether it took our write, nobody can say`);
  if (stored.etag === over) return null;
  if (stored.text === text) return stored.etag;
  const ours = isOurs(stored.text);
  if (ours === null) throw new StoreError('unknown', `${key} has moved on too far to tell whether it took our write`);
  if (ours) return stored.etag;
  throw Object.assign(new StoreError('conflict', `${key} was written by someone else`), {seen: true});
}

function lastWord(error, key, suspect) {
  const certain = error.certain !== false && !suspect;
  if (certain || error.code === 'conflict' || error.code === 'unknown') return error;
  return new StoreError('unknown', `whether ${key} was written is not known: ${error.message}`);
}
