// A server's REST interface as a source. A token, where one is needed, lives in this module's memory and nowhere else.

import {parse} from '../parts/lossless_json.js';
import {listen} from './events.js';

const ACTS_AT_ONCE = 5_000;

export async function open(config) {
  const {login, logout} = config;
  return new ApiSource(new URL(config.api ?? '../api/v1/', document.baseURI), {login, logout});
}

export class Refused extends Error {
  constructor(message, code, status) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

class ApiSource {
  #base;
  #token = null;
  #csrf = null; // what the server asks of the page of a person who logged in
  #auth;
  #met;

  constructor(base, auth = {}) {
    this.#base = base;
    this.#auth = auth;
    this.user = null;
    this.title = '';
    this.can = {write: false, live: true, shards: false, versions: true, controls: false, drain: false, audit: false};
    this.#met = this.#meet();
  }

  // Who we are to the server. One that wants a token says so again at the first question, where the page can ask.
  async #meet() {
    try {
      const {title, version, can, queues, types, user, csrf_token: csrf} = await this.#get('dashboard/session');
      Object.assign(this, {title, version, user, limits: {queues, types}});
      this.#csrf = csrf;
      this.can = {live: true, versions: true, ...can};
    } catch {
      this.#met = null; // whatever it is, the first real question meets it too, where it can be shown
    }
  }

  // An answer, and who we are, asked for at once: what may be done is known before anything is drawn.
  async #shown(answer) {
    this.#met ??= this.#meet();
    return (await Promise.all([answer, this.#met]))[0];
  }

  // Where a person logs in, and comes back to this view; null if the server knows no identity provider.
  get loginUrl() {
    if (!this.#auth.login) return null;
    const url = new URL(this.#auth.login, document.baseURI);
    const view = location.hash.slice(1);
    if (view.startsWith('/') && !view.startsWith('/login')) url.searchParams.set('view', view);
    return url.href;
  }

  // Ends the session here; the answer says where to end it at the provider, if there is such a place.
  async logout() {
    const {provider} = await this.#post(new URL(this.#auth.logout, document.baseURI));
    this.user = this.#csrf = this.#met = null;
    return provider;
  }

  async authorize(token) {
    const before = this.#token;
    this.#token = token;
    try {
      await this.#get('dashboard/session');
    } catch (error) {
      this.#token = before;
      throw error;
    }
    this.#met = this.#meet();
    await this.#met;
  }

  overview() {
    return this.#shown(this.#get('dashboard/overview'));
  }

  async tasks({cursor, ...filter}) {
    const {next, ...page} = await this.#shown(this.#get('dashboard/tasks', {...filter, after: cursor}));
    return {...page, cursor: next};
  }

  task(id) {
    return this.#shown(this.#get(`dashboard/tasks/${encodeURIComponent(id)}`));
  }

  async audit({cursor, ...filter}) {
    const {actions, next, dropped, unreadable} = await this.#shown(this.#get('audit', {...filter, after: cursor}));
    return {actions, cursor: next, dropped, unreadable};
  }

  async history(id) {
    return (await this.#get(`dashboard/tasks/${encodeURIComponent(id)}/history`)).events;
  }

  async workers() {
    return (await this.#shown(this.#get('dashboard/workers'))).workers;
  }

  // All that match, a few thousand at a time: each request stays short, and the page can show how far it is.
  async act(action, target, progress = () => {}) {
    const sum = {done: 0, refused: []};
    const asked = target.ids ? {ids: target.ids} : {filter: filterOf(target.filter), limit: ACTS_AT_ONCE};
    for (let after = ''; after !== null;) {
      const {done, refused, next} = await this.#post('dashboard/act', {action, ...asked, ...(after && {after})});
      sum.done += done;
      sum.refused.push(...refused);
      progress(sum.done);
      after = next;
    }
    return sum;
  }

  control(action, options = {}) {
    if (action === 'drain') return this.#post(`workers/${encodeURIComponent(options.worker)}/drain`);
    if (action === 'cleanup') return this.#post('dashboard/cleanup', options);
    if (action === 'rate-limit') return this.#post('controls/rate-limit', {type: options.type, tasks_per_second: options.limit});
    return this.#post(`controls/${action}`, options);
  }

  watch(onChange, onState = () => {}) {
    return listen((signal) => this.#fetch('GET', this.#url('events'), undefined, signal), onChange, onState);
  }

  close() {
    this.#token = null;
  }

  #url(path, query = {}) {
    const url = new URL(path, this.#base);
    for (const [name, value] of Object.entries(query)) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== undefined && each !== null && each !== '') url.searchParams.append(name, each);
      }
    }
    return url;
  }

  async #get(path, query) {
    return parse(await (await this.#fetch('GET', this.#url(path, query))).text());
  }

  async #post(path, body = {}) {
    return (await this.#fetch('POST', this.#url(path), body)).json();
  }

  async #fetch(method, url, body, signal) {
    const headers = {};
    if (this.#token !== null) headers.Authorization = `Bearer ${this.#token}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    if (method !== 'GET' && this.#token === null && this.#csrf) headers['X-CSRF-Token'] = this.#csrf;
    // A session's cookie goes with requests only where people log in, and never beside a token.
    const credentials = this.#auth.login && this.#token === null ? 'same-origin' : 'omit';
    const asked = {method, headers, signal, credentials, cache: 'no-store', redirect: 'error'};
    if (body !== undefined) asked.body = JSON.stringify(body);
    let answer;
    try {
      answer = await fetch(url, asked);
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new Refused('The server cannot be reached.', 'unreachable', 0);
    }
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }
}

// The list takes names one by one, the body takes lists.
function filterOf({status, type, queue, worker, priority, text, shard}) {
  const filter = {status: status ?? [], type: list(type), queue: list(queue)};
  if (worker) filter.worker = worker;
  if (priority !== undefined && priority !== '') filter.priority = Number(priority);
  if (text) filter.text = text;
  if (shard) filter.shard = shard;
  return filter;
}

const list = (value) => (Array.isArray(value) ? value : value ? [value] : []);

async function refusal(answer) {
  const problem = await answer.json().catch(() => ({}));
  return new Refused(problem.error ?? `The server answered ${answer.status}.`, problem.code ?? 'refused', answer.status);
}
