// AWS Signature Version 4 for requests of a browser.
//
// Requests are not signed with the secret, but with a key derived from it for one day, one region and one service:
//   HMAC(HMAC(HMAC(HMAC("AWS4" + secret, date), region), service), "aws4_request")
// The key is useless for anything else and after its day. A link can contain the keys of two days, so that it works across
// midnight (UTC).

const encoder = new TextEncoder();
const LAST_SECOND = 24 * 3600 - 1; // of a day

export const EMPTY_HASH = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855';

/** Percent-encodes everything except A-Z a-z 0-9 - . _ ~, as signatures require. */
export function encode(text) {
  return encodeURIComponent(text).replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);
}

/** A key as a path, encoded once, with its slashes. */
export function encodePath(path) {
  return path.split('/').map(encode).join('/');
}

export function canonicalQuery(query) {
  return Object.entries(query)
    .map(([name, value]) => [encode(name), encode(String(value))])
    .sort(([a, x], [b, y]) => (a < b ? -1 : a > b ? 1 : x < y ? -1 : x > y ? 1 : 0))
    .map((pair) => pair.join('='))
    .join('&');
}

/** "20130524T000000Z" */
export function stamp(seconds) {
  return new Date(seconds * 1000).toISOString().replace(/[-:]|\.\d+/g, '');
}

export function hex(bytes) {
  return [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

export function unhex(text) {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export async function sha256(data) {
  const bytes = typeof data === 'string' ? encoder.encode(data) : data;
  return hex(await crypto.subtle.digest('SHA-256', bytes));
}

async function hmac(key, text) {
  const imported = await crypto.subtle.importKey('raw', key, {name: 'HMAC', hash: 'SHA-256'}, false, ['sign']);
  return crypto.subtle.sign('HMAC', imported, encoder.encode(text));
}

/** Derives a key from the secret. Only for tests: a page never has the secret. */
export async function deriveKey(secret, date, region, service) {
  let key = encoder.encode(`AWS4${secret}`);
  for (const part of [date, region, service, 'aws4_request']) key = await hmac(key, part);
  return hex(key);
}

export class Signer {
  // Private, so that the keys cannot be printed, copied or stored by accident.
  #keys;

  /** keys: {"20130524": hex of the derived key, …} */
  constructor({accessKeyId, sessionToken = '', region, service = 's3', keys}) {
    this.accessKeyId = accessKeyId;
    this.sessionToken = sessionToken;
    this.region = region;
    this.service = service;
    this.#keys = Object.entries(keys).map(([date, key]) => [date, unhex(key)]);
  }

  /** The last day of the keys, as "20130524". */
  get lastDate() {
    return this.#keys.map(([date]) => date).sort().at(-1) ?? '';
  }

  /** The moment within the days of the keys that is nearest to `at`, in seconds. */
  nearest(at) {
    const days = this.#keys.map(([date]) => Date.parse(date.replace(/(....)(..)(..)/, '$1-$2-$3')) / 1000);
    return days.length ? Math.min(Math.max(at, Math.min(...days)), Math.max(...days) + LAST_SECOND) : at;
  }

  covers(at) {
    return this.#find(stamp(at).slice(0, 8)) !== undefined;
  }

  #find(date) {
    return this.#keys.find(([day]) => day === date);
  }

  #key(date) {
    const found = this.#find(date);
    if (!found) throw Object.assign(new Error('this link has expired; create a new one'), {code: 'expired'});
    return found[1];
  }

  /** Returns the headers to send. `path` is already encoded; `host` is signed, but sent by the browser. */
  async sign({method, host, path, query = {}, headers = {}, bodyHash = EMPTY_HASH, at}) {
    const moment = stamp(at);
    const date = moment.slice(0, 8);
    const key = this.#key(date);
    const sent = {...lowered(headers), 'x-amz-content-sha256': bodyHash, 'x-amz-date': moment};
    if (this.sessionToken) sent['x-amz-security-token'] = this.sessionToken;
    const signed = {...sent, host};
    const names = Object.keys(signed).sort();
    const lines = names.map((name) => `${name}:${String(signed[name]).trim().replace(/ +/g, ' ')}\n`).join('');
    const request = [method, path, canonicalQuery(query), lines, names.join(';'), bodyHash].join('\n');
    const scope = `${date}/${this.region}/${this.service}/aws4_request`;
    const text = ['AWS4-HMAC-SHA256', moment, scope, await sha256(request)].join('\n');
    const signature = hex(await hmac(key, text));
    const credential = `Credential=${this.accessKeyId}/${scope}`;
    sent.authorization = `AWS4-HMAC-SHA256 ${credential}, SignedHeaders=${names.join(';')}, Signature=${signature}`;
    return sent;
  }
}

function lowered(headers) {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
}
