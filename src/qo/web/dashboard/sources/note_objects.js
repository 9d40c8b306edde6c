// Notes of the layout `tasks`: one object each, as in qo/engines/note_objects.py.

import {parsed, sealed} from './checksum.js';
import {putDocument} from './own_writes.js';
import {newWriteId} from './rules.js';
import {StoreError} from './s3.js';
import {encode} from './sigv4.js';
import {base64Of, textOf} from './values.js';

const MAX_WRITES = 8;
const MAX_ATTEMPTS = 20;
const MAX_WORKERS = 500;
const MAX_PAGES = 5; // of 1,000 names
const MAX_READS = 400; // of notes, for one view

export class NoteObjects {
  #known = new Map(); // key: {etag, value}; only changed notes are read again

  constructor(s3, format) {
    this.s3 = s3;
    this.format = format;
  }

  /** The value of a note; null if it does not exist or is not readable. */
  async read(name) {
    try {
      return (await this.#read(keyOf(name)))?.value ?? null;
    } catch (error) {
      if (error.code !== 'unreadable') throw error;
      return null;
    }
  }

  /** The registrations of all workers. */
  async workers() {
    const {objects} = await this.s3.list('workers/', {most: MAX_WORKERS});
    this.#forget('workers/', objects);
    await this.#load(objects, MAX_WORKERS, (value) => value);
    return objects.map(({key}) => this.#known.get(key)?.value ?? null).filter(Boolean);
  }

  /** {notes: [{name, value}], isComplete}: notes whose names start with `prefix` and sort after `after`. `as` converts
   * the value. One call reads a bounded number of notes, the next call continues. */
  async find(prefix, {after, isWanted, as}) {
    const {objects, next} = await this.s3.listAll(`notes/${prefix}`, {after: `notes/${after}`, pages: MAX_PAGES});
    const named = objects.map((object) => ({...object, name: nameOf(object.key)})).filter(({name}) => name !== null && isWanted(name));
    this.#forget(`notes/${prefix}`, named);
    const unread = await this.#load(named, MAX_READS, as);
    const notes = named.map(({key, name}) => ({name, value: this.#known.get(key)?.value ?? null}));
    return {notes: notes.filter(({value}) => value !== null), isComplete: !next && !unread};
  }

  /** Reads changed notes, up to `most`. Returns how many are left. A note that is not readable has the value null. */
  async #load(objects, most, as) {
    const changed = objects.filter(({key, etag}) => this.#known.get(key)?.etag !== etag);
    await Promise.all(changed.slice(0, most).map(async ({key, etag}) => {
      const note = await this.#read(key).catch((error) => {
        if (error.code !== 'unreadable') throw error;
        return {etag, value: null};
      });
      if (note) this.#known.set(key, {etag: note.etag, value: note.value === null ? null : as(note.value)});
      else this.#known.delete(key);
    }));
    return Math.max(0, changed.length - most);
  }

  #forget(prefix, listed) {
    const kept = new Set(listed.map(({key}) => key));
    for (const key of this.#known.keys()) if (key.startsWith(prefix) && !kept.has(key)) this.#known.delete(key);
  }

  /** Replaces a note by the result of `how`, and repeats this after a conflict. */
  async change(name, how) {
    await this.format.check();
    const key = keyOf(name);
    for (let attempt = 1; ; attempt += 1) {
      const note = await this.#read(key);
      const writes = [...(note?.writes ?? []), newWriteId()].slice(-MAX_WRITES);
      const text = sealed(JSON.stringify({name, data: base64Of(JSON.stringify(how(note?.value ?? {}))), writes}));
      try {
        await putDocument(this.s3, key, text, {over: note?.etag ?? null, isOurs: (stored) => isOurs(stored, writes)});
        return;
      } catch (error) {
        if (error.code !== 'conflict' || attempt === MAX_ATTEMPTS) throw error;
      }
    }
  }

  async #read(key) {
    const stored = await this.s3.get(key);
    if (stored === null) return null;
    try {
      const note = parsed(stored.text);
      return {value: JSON.parse(textOf(note.data)), writes: [...note.writes], etag: stored.etag};
    } catch {
      throw new StoreError('unreadable', `${key} is not a valid note; check it and move it away`);
    }
  }
}

function isOurs(text, writes) {
  try {
    const stored = JSON.parse(text).writes;
    if (stored.includes(writes.at(-1))) return true;
    return stored.length === MAX_WRITES ? null : false;
  } catch {
    return null;
  }
}

/** The name of the note, or null. */
function nameOf(key) {
  try {
    return decodeURIComponent(key.slice('notes/'.length, -'.json'.length));
  } catch {
    return null;
  }
}

function keyOf(name) {
  return `notes/${encode(name)}.json`;
}
