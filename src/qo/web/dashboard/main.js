// Startup: open the source, draw the frame, show the view of the URL, and refresh it.

import {frame} from './parts/frame.js';
import {Live} from './parts/live.js';
import {listen as listenToKeys} from './parts/keys.js';
import {parse} from './parts/router.js';
import {start as startClock} from './parts/clock.js';
import {failure, loading} from './parts/states.js';
import {tokenForm} from './views/credential_form.js';

// Run on first use. index.html preloads all of them: views can be opened while the server is away, and are of one version.
const VIEWS = {
  overview: () => import('./views/overview.js'),
  tasks: () => import('./views/tasks.js'),
  task: () => import('./views/task.js'),
  workers: () => import('./views/workers.js'),
  batches: () => import('./views/batches.js'),
  batch: () => import('./views/batch.js'),
  workflows: () => import('./views/workflows.js'),
  workflow: () => import('./views/workflow.js'),
  schedules: () => import('./views/schedules.js'),
  limits: () => import('./views/limits.js'),
  audit: () => import('./views/audit.js'),
  login: () => import('./views/login.js'),
  not_found: () => import('./views/not_found.js'),
};
const LOADING_DELAY = 150; // milliseconds before a loading message is shown
const STALLED_DELAY = 10_000; // milliseconds without a response before a notice is shown
const STALLED = 'there has been no response for 10 seconds';

class Page {
  constructor(source) {
    this.source = source;
    this.live = new Live(source, () => this.refresh());
    this.frame = frame(source, this.live);
    this.view = null; // the open view: {element, refresh(), update?(params), keys?, close?()}
    this.round = 0;
    this.moves = 0;
    this.asking = false; // for a token
  }

  start(root) {
    root.replaceChildren(this.frame.element);
    window.addEventListener('popstate', () => this.move());
    window.addEventListener('hashchange', () => this.move());
    window.addEventListener('qo:moved', () => this.move());
    listenToKeys(() => this.view?.keys ?? {});
    startClock(this.source.clock);
    this.move();
    this.live.start();
  }

  move() {
    if (this.at === location.hash && this.view) return;
    this.at = location.hash;
    const to = parse(location.hash);
    this.frame.mark(to.view);
    if (this.name === to.view && this.view?.update?.(to)) {
      this.refresh();
      return;
    }
    this.view?.close?.();
    this.frame.problem(null); // of the previous view
    this.name = to.view;
    this.view = null;
    this.shown = false;
    this.open(to, (this.moves += 1));
  }

  async open(to, move) {
    const slow = setTimeout(() => move === this.moves && !this.view && !this.asking && this.frame.put(loading()), LOADING_DELAY);
    try {
      const {open} = await VIEWS[to.view]().catch(notLoaded);
      if (move !== this.moves) return; // the user has opened another view in the meantime
      this.view = open({source: this.source, to, refresh: () => this.refresh()});
      await this.refresh();
    } catch (error) {
      if (move === this.moves && !this.asking) this.frame.put(failure(error, () => location.reload(), to.view));
    } finally {
      clearTimeout(slow);
    }
  }

  async refresh() {
    const {view} = this;
    if (!view) return;
    const round = ++this.round;
    this.live.asked();
    const slow = setTimeout(() => this.shown || this.asking || this.frame.put(loading()), LOADING_DELAY);
    const stalled = setTimeout(() => this.shown && view === this.view && this.frame.problem(new Error(STALLED), () => this.refresh()), STALLED_DELAY);
    try {
      await view.refresh();
      if (view !== this.view) return;
      this.frame.renew();
      if (!this.shown) this.frame.put(view.element);
      this.shown = true;
      this.asking = false; // a login in another window also ends the question
      this.frame.problem(null);
    } catch (error) {
      if (view === this.view && round === this.round) this.fail(error);
    } finally {
      clearTimeout(slow);
      clearTimeout(stalled);
    }
  }

  async fail(error) {
    if (error.name === 'AbortError' || this.asking) return; // the form stays until a token is accepted
    if (error.code === 'unauthorized' && this.source.authorize) {
      this.asking = true;
      this.shown = false;
      this.frame.problem(null);
      this.frame.put(tokenForm(this.source.loginUrl, async (token) => {
        await this.source.authorize(token);
        this.asking = false;
        this.live.restart();
        await (this.view ? this.refresh() : this.open(parse(location.hash), this.moves));
      }));
    } else if (this.shown) {
      this.frame.problem(error, () => this.refresh());
    } else {
      this.frame.put(failure(error, () => this.refresh(), this.name));
    }
  }
}

// Browsers remember that an import failed, so only a new page can repeat it.
function notLoaded(cause) {
  throw Object.assign(new Error('this view could not be loaded', {cause}), {code: 'not_loaded'});
}

// A fragment that is not a view contains credentials. They are removed from the address bar, the history and copies of the URL.
function takeCredentials() {
  const {hash} = location;
  if (hash.length < 2 || hash.startsWith('#/')) return null;
  history.replaceState(null, '', '#/');
  return hash.slice(1);
}

async function readConfig() {
  const answer = await fetch(new URL('config.json', document.baseURI)); // preloaded by index.html
  return answer.ok ? answer.json() : {};
}

async function openSource(root) {
  const credentials = takeCredentials();
  const config = await readConfig().catch(() => ({}));
  const bucket = credentials !== null || config.source === 'bucket';
  const {open} = await (bucket ? import('./sources/bucket.js') : import('./sources/api.js'));
  if (!bucket || credentials !== null) return open({...config, credentials});
  const {askForCode} = await import('./views/credential_form.js');
  return askForCode(root, (code) => open({...config, credentials: code}));
}

async function boot() {
  const root = document.getElementById('app');
  try {
    new Page(await openSource(root)).start(root);
  } catch (error) {
    root.replaceChildren(failure(error, () => location.reload()));
  }
}

boot();
