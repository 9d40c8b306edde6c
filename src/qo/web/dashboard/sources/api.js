// The REST API of a server as a source. A token is only kept in the memory of this module.

import {parse} from '../parts/lossless_json.js';
import {listen} from './events.js';
import {StoreClock} from './store_clock.js';

const MAX_ACTIONS = 5_000; // tasks per request
const MAX_WORKFLOWS = 25; // in the list
const READ_TIMEOUT = 150_000; // milliseconds, longer than the request timeout of the server

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
  #csrf = null; // required for actions of a logged-in user
  #auth;
  #session;

  constructor(base, auth = {}) {
    this.#base = base;
    this.#auth = auth;
    this.clock = new StoreClock(); // of the server, which is that of the store or follows it
    this.user = null;
    this.title = '';
    this.can = {write: false, live: true, shards: false, versions: true, controls: false, drain: false, audit: false, workflows: false, change_workflows: false};
    this.#session = this.#readSession();
  }

  // Reads the session. If the server requires a token, the next request fails as well, and the page asks for one.
  async #readSession() {
    try {
      const {title, version, can, queues, types, user, csrf_token: csrf} = await this.#get('dashboard/session');
      Object.assign(this, {title, version, user, limits: {queues, types}});
      this.#csrf = csrf;
      this.can = {live: true, versions: true, operate: can.write, ...can};
    } catch {
      this.#session = null; // the next request meets the same error and shows it
    }
  }

  // Waits for the response and the session: the permissions are known before anything is drawn.
  async #shown(answer) {
    this.#session ??= this.#readSession();
    return (await Promise.all([answer, this.#session]))[0];
  }

  // The URL of the login, which returns to this view; null if the server has no identity provider.
  get loginUrl() {
    if (!this.#auth.login) return null;
    const url = new URL(this.#auth.login, document.baseURI);
    const view = location.hash.slice(1);
    if (view.startsWith('/') && !view.startsWith('/login')) url.searchParams.set('view', view);
    return url.href;
  }

  // Ends the session. Returns the URL that ends it at the provider, or null.
  async logout() {
    const {provider} = await this.#post(new URL(this.#auth.logout, document.baseURI));
    this.user = this.#csrf = this.#session = null;
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
    this.#session = this.#readSession();
    await this.#session;
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

  // Why a task waits.
  explain(id) {
    return this.#get(`tasks/${encodeURIComponent(id)}/explain`);
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

  async batches() {
    return (await this.#shown(this.#get('batches'))).batches;
  }

  batch(id) {
    return this.#shown(this.#get(`batches/${encodeURIComponent(id)}`));
  }

  async workflows() {
    return (await this.#shown(this.#get('workflows', {limit: MAX_WORKFLOWS}))).workflows;
  }

  workflow(id) {
    return this.#shown(this.#get(`dashboard/workflows/${encodeURIComponent(id)}`));
  }

  cancelWorkflow(id) {
    return this.#post(`workflows/${encodeURIComponent(id)}/cancel`);
  }

  // Runs again what failed or was cancelled, or the tasks with these ids and everything that depends on them.
  replayWorkflow(id, start = []) {
    return this.#post(`workflows/${encodeURIComponent(id)}/replay`, {start});
  }

  async schedules() {
    const {schedules} = await this.#shown(this.#get('schedules'));
    return {schedules, isComplete: true};
  }

  async fleetLimits() {
    return (await this.#shown(this.#get('limits'))).limits;
  }

  changeSchedule(name, action) {
    return this.#post(`schedules/${encodeURIComponent(name)}/${action}`);
  }

  // Acts on all matching tasks, a few thousand per request, and reports the progress.
  async act(action, target, progress = () => {}) {
    const sum = {done: 0, refused: []};
    const asked = target.ids ? {ids: target.ids} : {filter: filterOf(target.filter), limit: MAX_ACTIONS};
    for (let after = ''; after !== null;) {
      const {done, refused, next} = await this.#post('dashboard/act', {action, ...target.values, ...asked, ...(after && {after})});
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
    if (action === 'fleet-limit') return this.#post('limits', options);
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
    const signal = AbortSignal.timeout(READ_TIMEOUT); // a lost connection may never report an error
    return parse(await received((await this.#fetch('GET', this.#url(path, query), undefined, signal)).text()));
  }

  async #post(path, body = {}) {
    return received((await this.#fetch('POST', this.#url(path), body)).json());
  }

  async #fetch(method, url, body, signal) {
    const headers = {};
    if (this.#token !== null) headers.Authorization = `Bearer ${this.#token}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    if (method !== 'GET' && this.#token === null && this.#csrf) headers['X-CSRF-Token'] = this.#csrf;
    // The session cookie is only sent if the server has logins, and never together with a token.
    const credentials = this.#auth.login && this.#token === null ? 'same-origin' : 'omit';
    const asked = {method, headers, signal, credentials, cache: 'no-store', redirect: 'error'};
    if (body !== undefined) asked.body = JSON.stringify(body);
    const sentAt = this.clock.clock();
    const answer = await received(fetch(url, asked));
    this.clock.learn(sentAt, answer.headers.get('date'), this.clock.clock());
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }
}

// The connection can break before the response and within it.
async function received(response) {
  try {
    return await response;
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refused(error.name === 'TimeoutError' ? 'The server does not respond.' : 'The server cannot be reached.', 'unreachable', 0);
  }
}

// The filter of a request body has lists where the view has single names.
function filterOf({status, type, queue, worker, batch, priority, text, shard}) {
  const filter = {status: status ?? [], type: list(type), queue: list(queue)};
  if (worker) filter.worker = worker;
  if (batch) filter.batch = batch;
  if (priority !== undefined && priority !== '') filter.priority = Number(priority);
  if (text) filter.text = text;
  if (shard) filter.shard = shard;
  return filter;
}

const list = (value) => (Array.isArray(value) ? value : value ? [value] : []);

async function refusal(answer) {
  const problem = await answer.json().catch(() => ({}));
  return new Refused(problem.error ?? `The server responded with status ${answer.status}.`, problem.code ?? 'refused', answer.status);
}
