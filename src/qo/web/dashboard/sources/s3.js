// S3 requests: reads, lists and writes objects with signatures, and classifies the responses.

import {Signer, canonicalQuery, encodePath, sha256} from './sigv4.js';
import {StoreClock} from './store_clock.js';
import {parseXml} from './xml.js';

const MAX_CONCURRENT = 12; // requests; over HTTP/1.1 a browser sends six
const MAX_ATTEMPTS = 4; // of a failed or lost request, if repeating it is safe
const FIRST_DELAY = 150; // milliseconds
const MAX_SKEW = 60; // seconds; a larger clock error can cause a rejection, because signatures contain the time

export class StoreError extends Error {
  /** code: not_found, conflict, not_allowed, expired, busy, no_answer, unreadable, unknown */
  constructor(code, message, {certain = true} = {}) {
    super(message);
    this.code = code;
    this.certain = certain; // false: the write may have been made
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
    this.requests = 0; // number of requests so far, to measure the cost of a view
    this.#signer = accessKeyId ? new Signer({accessKeyId, sessionToken, region, keys}) : null;
  }

  /** {text, etag}; null if the object does not exist; undefined if its ETag is still `unless`. */
  async get(key, {versionId, unless} = {}) {
    const query = versionId ? {versionId} : {};
    const answer = await this.#ask('GET', key, {query, headers: unless ? {'if-none-match': unless} : {}});
    if (answer.status === 304) return undefined;
    const said = await answer.text();
    if (isMissing(answer.status, said)) return null;
    this.#check(answer, said, key);
    return {text: said, etag: answer.headers.get('etag') ?? ''};
  }

  /** {bytes, size}; bytes is null if there are more than `most`. null if the object does not exist. */
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

  /** Returns the new ETag. `over`: the ETag to replace, null to create the object, undefined to write unconditionally. */
  async put(key, text, {over} = {}) {
    const headers = {'content-type': 'application/json'};
    if (over === null) headers['if-none-match'] = '*';
    else if (over !== undefined) headers['if-match'] = over;
    const answer = await this.#ask('PUT', key, {headers, body: text, repeat: over === undefined});
    const said = answer.ok ? '' : await answer.text();
    if (answer.status === 412 || (over && isMissing(answer.status, said))) {
      throw new StoreError('conflict', `${key} was written by another process`);
    }
    this.#check(answer, said, key, {writing: true});
    const etag = answer.headers.get('etag');
    if (!etag) throw new StoreError('unreadable', 'the store does not expose the ETag header: run qo bucket-setup --origin');
    return etag;
  }

  async delete(key) {
    const answer = await this.#ask('DELETE', key, {repeat: true});
    const said = answer.ok ? '' : await answer.text();
    if (!isMissing(answer.status, said)) this.#check(answer, said, key, {writing: true});
  }

  /** One page of a listing: {objects: [{key, etag, at}], next}; `next` is the `after` of the next page, empty on the last. */
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

  /** Several pages of a listing, up to a number of requests: {objects, next}. */
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

  /** Versions of the current object, newest first. Versions before a deletion belong to another task. */
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
      throw new StoreError('unreadable', `the response to ${what} is not XML`);
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
          const guessed = !this.clock.isSet && this.#signer && !this.#signer.covers(this.clock.now());
          const answer = await this.#send(method, key, query, headers, body);
          const wasWrong = guessed || Math.abs(this.clock.offset - offset) > MAX_SKEW;
          if (answer.status === 403 && attempt === 1 && wasWrong) continue;
          if (!isBusy(answer.status) || !repeat || attempt === MAX_ATTEMPTS) return answer;
        } catch (error) {
          if (error.code !== 'no_answer' || !repeat || attempt === MAX_ATTEMPTS) throw error;
        }
        await pause(FIRST_DELAY * 2 ** (attempt - 1) * (0.5 + Math.random() / 2));
      }
    } finally {
      this.#underWay -= 1;
      this.#waiting.shift()?.();
    }
  }

  async #turn() {
    if (this.#underWay >= MAX_CONCURRENT) await new Promise((go) => this.#waiting.push(go));
    this.#underWay += 1;
  }

  /** Before the store has told its time, a moment for which there is a key: the clock of this computer may be wrong. */
  #now() {
    const now = this.clock.now();
    return this.#signer && !this.clock.isSet ? this.#signer.nearest(now) : now;
  }

  async #send(method, key, query, headers, body) {
    const sentAt = this.clock.clock();
    const now = this.#now();
    if (this.expires && this.clock.isSet && now > this.expires) {
      throw new StoreError('expired', 'this link has expired; create a new one');
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
      const why = 'the store is unreachable, or its CORS rules do not allow this page (qo bucket-setup --origin)';
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
      if (expired) throw new StoreError('expired', `the credentials have expired (${word})`);
      const verb = writing ? 'write' : 'read';
      throw new StoreError('not_allowed', `these credentials may not ${verb} ${what} (${word})`);
    }
    if (answer.status === 409) throw new StoreError('conflict', `${what} is being written by another process (${word})`);
    if (answer.status === 404) throw new StoreError('not_found', `${what} does not exist (${word})`);
    throw new StoreError('busy', `the store failed (${word}); try again`, {certain: answer.status === 503});
  }
}

/** Path style for custom endpoints and for names with a dot, which certificates do not cover; otherwise the host of the bucket. */
export function baseOf({endpoint, region, bucket}) {
  if (endpoint) return `${endpoint.replace(/\/+$/, '')}/${encodePath(bucket)}/`;
  const host = `s3.${region}.amazonaws.com`;
  return bucket.includes('.') ? `https://${host}/${bucket}/` : `https://${bucket}.${host}/`;
}

function isBusy(status) {
  return status === 429 || status >= 500;
}

/** Whether the object does not exist; 405 means that the latest version is a delete marker. A missing bucket is an error. */
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
