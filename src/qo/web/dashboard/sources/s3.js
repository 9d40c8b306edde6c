// The store's own language: objects read, listed and written with signed requests, and answers told apart.

import {Signer, canonicalQuery, encodePath, sha256} from './sigv4.js';
import {StoreClock} from './store_clock.js';
import {parseXml} from './xml.js';

const AT_ONCE = 12; // requests under way; over HTTP/1.1 a browser makes six
const TRIES = 4; // of a request the store would not take, or that was lost, if repeating it is harmless
const FIRST_PAUSE = 150; // milliseconds
const SKEW = 60; // seconds a clock was off, after which a refusal may be about that: signatures carry the time

export class StoreError extends Error {
  /** code: not_found, conflict, not_allowed, expired, busy, no_answer, unreadable, unknown */
  constructor(code, message, {certain = true} = {}) {
    super(message);
    this.code = code;
    this.certain = certain; // false: a write that may have landed all the same
  }
}

export class S3 {
  #signer;
  #waiting = [];
  #underWay = 0;

  constructor({endpoint = '', region, bucket, prefix = '', accessKeyId, sessionToken, keys, expires = 0}, clock) {
    this.clock = clock ?? new StoreClock();
    this.bucket = bucket;
    this.root = prefix ? `${prefix.replace(/^\/+|\/+$/g, '')}/` : '';
    this.base = new URL(baseOf({endpoint, region, bucket}));
    this.expires = expires;
    this.requests = 0; // asked so far, for those who watch what a view costs
    this.#signer = accessKeyId ? new Signer({accessKeyId, sessionToken, region, keys}) : null;
  }

  /** {text, etag}; null if there is nothing; undefined if it is still the version with the ETag `unless`. */
  async get(key, {versionId, unless} = {}) {
    const query = versionId ? {versionId} : {};
    const answer = await this.#ask('GET', key, {query, headers: unless ? {'if-none-match': unless} : {}});
    if (answer.status === 304) return undefined;
    const said = await answer.text();
    if (isMissing(answer.status, said)) return null;
    this.#check(answer, said, key);
    return {text: said, etag: answer.headers.get('etag') ?? ''};
  }

  /** {bytes, size}; bytes is null if there are more than `most`. null if there is nothing. */
  async getBytes(key, {most}) {
    const answer = await this.#ask('GET', key, {});
    const size = Number(answer.headers.get('content-length'));
    if (answer.ok && size > most) {
      await answer.body?.cancel();
      return {bytes: null, size};
    }
    if (answer.ok) return {bytes: new Uint8Array(await answer.arrayBuffer()), size};
    const said = await answer.text();
    if (!isMissing(answer.status, said)) this.#check(answer, said, key);
    return null;
  }

  /** The new ETag. `over`: an ETag to replace, null if nothing may be there, undefined for whatever is there. */
  async put(key, text, {over} = {}) {
    const headers = {'content-type': 'application/json'};
    if (over === null) headers['if-none-match'] = '*';
    else if (over !== undefined) headers['if-match'] = over;
    const answer = await this.#ask('PUT', key, {headers, body: text, repeat: over === undefined});
    const said = answer.ok ? '' : await answer.text();
    if (answer.status === 412 || (over && isMissing(answer.status, said))) {
      throw new StoreError('conflict', `${key} was written by someone else`);
    }
    this.#check(answer, said, key, {writing: true});
    const etag = answer.headers.get('etag');
    if (!etag) throw new StoreError('unreadable', 'the store does not show its ETag: run qo bucket-setup --origin');
    return etag;
  }

  async delete(key) {
    const answer = await this.#ask('DELETE', key, {repeat: true});
    const said = answer.ok ? '' : await answer.text();
    if (!isMissing(answer.status, said)) this.#check(answer, said, key, {writing: true});
  }

  /** One page of a listing: {objects: [{key, etag, at}], next}; the next page begins behind `next`, if it names any. */
  async list(prefix, {after = '', most = 1000} = {}) {
    const query = {'list-type': 2, prefix: this.root + prefix, 'max-keys': most};
    if (after) query['start-after'] = this.root + after;
    const page = await this.#askXml(query, `a listing of ${prefix}`);
    const objects = [...page.getElementsByTagName('Contents')].map((entry) => ({
      key: text(entry, 'Key').slice(this.root.length),
      etag: text(entry, 'ETag'),
      at: Date.parse(text(entry, 'LastModified')) / 1000,
    }));
    const more = text(page.documentElement, 'IsTruncated') === 'true' && objects.length > 0;
    return {objects, next: more ? objects.at(-1).key : ''};
  }

  /** Every page, up to so many requests: {objects, next}. */
  async listAll(prefix, {after = '', pages = 10} = {}) {
    const objects = [];
    let next = after;
    for (let page = 0; page < pages; page += 1) {
      const found = await this.list(prefix, {after: next});
      objects.push(...found.objects);
      next = found.next;
      if (!next) break;
    }
    return {objects, next};
  }

  /** Versions of the object that is there now, newest first: what came before a deletion is another's history. */
  async versions(key, {most = 100} = {}) {
    const query = {versions: '', prefix: this.root + key, 'max-keys': most};
    const page = await this.#askXml(query, `the versions of ${key}`);
    const found = [];
    for (const entry of page.documentElement.children) {
      if (text(entry, 'Key') !== this.root + key) continue;
      if (entry.localName === 'DeleteMarker') break;
      if (entry.localName === 'Version') found.push({id: text(entry, 'VersionId'), etag: text(entry, 'ETag')});
    }
    return found;
  }

  async #askXml(query, what) {
    const answer = await this.#ask('GET', null, {query});
    const said = await answer.text();
    this.#check(answer, said, what);
    const page = parseXml(said);
    if (page.getElementsByTagName('parsererror').length) {
      throw new StoreError('unreadable', `the store answered ${what} with something that is not XML`);
    }
    return page;
  }

  // --- one request

  async #ask(method, key, {query = {}, headers = {}, body, repeat = method === 'GET'}) {
    await this.#turn();
    try {
      for (let attempt = 1; ; attempt += 1) {
        try {
          const {offset} = this.clock;
          const answer = await this.#send(method, key, query, headers, body);
          if (answer.status === 403 && attempt === 1 && Math.abs(this.clock.offset - offset) > SKEW) continue;
          if (!isBusy(answer.status) || !repeat || attempt === TRIES) return answer;
        } catch (error) {
          if (error.code !== 'no_answer' || !repeat || attempt === TRIES) throw error;
        }
        await pause(FIRST_PAUSE * 2 ** (attempt - 1) * (0.5 + Math.random() / 2));
      }
    } finally {
      this.#underWay -= 1;
      this.#waiting.shift()?.();
    }
  }

  async #turn() {
    if (this.#underWay >= AT_ONCE) await new Promise((go) => this.#waiting.push(go));
    this.#underWay += 1;
  }

  async #send(method, key, query, headers, body) {
    const sentAt = this.clock.clock();
    const now = this.clock.now();
    if (this.expires && this.clock.isSet && now > this.expires) {
      throw new StoreError('expired', 'this link has expired: ask for a new one');
    }
    const path = this.base.pathname + (key === null ? '' : encodePath(this.root + key));
    const bodyHash = body === undefined ? undefined : await sha256(body);
    const signed = this.#signer
      ? await this.#signer.sign({method, host: this.base.host, path, query, headers, bodyHash, at: now})
      : headers;
    const asked = canonicalQuery(query);
    this.requests += 1;
    let answer;
    try {
      answer = await fetch(`${this.base.origin}${path}${asked ? `?${asked}` : ''}`, {
        method,
        headers: signed,
        body,
        cache: 'no-store',
        credentials: 'omit',
        redirect: 'error',
        referrerPolicy: 'no-referrer',
      });
    } catch (error) {
      const why = 'the store cannot be reached, or does not let this page in (CORS: qo bucket-setup --origin)';
      throw new StoreError('no_answer', `${why}: ${error.message}`, {certain: method === 'GET'});
    }
    this.clock.learn(sentAt, answer.headers.get('date'), this.clock.clock());
    return answer;
  }

  #check(answer, said, what, {writing = false} = {}) {
    if (answer.ok) return;
    const {code, message} = errorIn(said);
    const word = `${code || answer.status}${message ? `: ${message}` : ''}`.slice(0, 300);
    if (answer.status === 403 || answer.status === 401) {
      const expired = /Expired|RequestTimeTooSkewed/.test(code);
      if (expired) throw new StoreError('expired', `the store says these credentials are over (${word})`);
      const verb = writing ? 'write' : 'read';
      throw new StoreError('not_allowed', `these credentials may not ${verb} ${what} (${word})`);
    }
    if (answer.status === 409) throw new StoreError('conflict', `${what} is being written by someone else (${word})`);
    if (answer.status === 404) throw new StoreError('not_found', `${what} is not there (${word})`);
    throw new StoreError('busy', `the store would not do it (${word}); try again`, {certain: answer.status === 503});
  }
}

/** Path style with an endpoint of one's own or a name that no certificate fits; else the bucket's own host. */
export function baseOf({endpoint, region, bucket}) {
  if (endpoint) return `${endpoint.replace(/\/+$/, '')}/${encodePath(bucket)}/`;
  const host = `s3.${region}.amazonaws.com`;
  return bucket.includes('.') ? `https://${host}/${bucket}/` : `https://${bucket}.${host}/`;
}

function isBusy(status) {
  return status === 429 || status >= 500;
}

/** No such key; 405: a deletion's marker is the latest. A missing bucket is another matter. */
function isMissing(status, said) {
  return status === 405 || (status === 404 && errorIn(said).code !== 'NoSuchBucket');
}

function errorIn(said) {
  if (!said.trimStart().startsWith('<')) return {code: '', message: ''};
  const page = parseXml(said);
  return {code: text(page, 'Code'), message: text(page, 'Message')};
}

function text(element, name) {
  return element.getElementsByTagName(name)[0]?.textContent ?? '';
}

function pause(milliseconds) {
  return new Promise((go) => setTimeout(go, milliseconds));
}
