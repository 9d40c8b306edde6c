// Notes of the layout `tasks`: one object each, as in qo/engines/note_objects.py.

import {parsed, sealed} from './checksum.js';
import {putDocument} from './own_writes.js';
import {newWriteId} from './rules.js';
import {StoreError} from './s3.js';
import {encode} from './sigv4.js';
import {base64Of, textOf} from './values.js';

const REMEMBERED = 8;
const TRIES = 20;
const MOST = 500; // notes read at once

export class NoteObjects {
  constructor(s3, format) {
    this.s3 = s3;
    this.format = format;
  }

  /** null: there is none, or none that can be read. */
  async read(name) {
    try {
      return (await this.#read(keyOf(name)))?.value ?? null;
    } catch (error) {
      if (error.code !== 'unreadable') throw error;
      return null;
    }
  }

  /** Every worker's registration. */
  async workers() {
    const {objects} = await this.s3.list('workers/', {most: MOST});
    const notes = await Promise.all(objects.map(({key}) => this.#read(key).catch(() => null)));
    return notes.filter(Boolean).map((note) => note.value);
  }

  /** Replace a note by what `how` makes of it; again if someone else was faster. */
  async change(name, how) {
    await this.format.check();
    const key = keyOf(name);
    for (let attempt = 1; ; attempt += 1) {
      const note = await this.#read(key);
      const writes = [...(note?.writes ?? []), newWriteId()].slice(-REMEMBERED);
      const text = sealed(JSON.stringify({name, data: base64Of(JSON.stringify(how(note?.value ?? {}))), writes}));
      try {
        await putDocument(this.s3, key, text, {over: note?.etag ?? null, isOurs: (stored) => isOurs(stored, writes)});
        return;
      } catch (error) {
        if (error.code !== 'conflict' || attempt === TRIES) throw error;
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
      throw new StoreError('unreadable', `${key} is not a note of qo's; look at it and move it away`);
    }
  }
}

function isOurs(text, writes) {
  try {
    const stored = JSON.parse(text).writes;
    if (stored.includes(writes.at(-1))) return true;
    return stored.length === REMEMBERED ? null : false;
  } catch {
    return null;
  }
}

function keyOf(name) {
  return `notes/${encode(name)}.json`;
}
