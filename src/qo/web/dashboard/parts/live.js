// When to refresh: on changes of the source, and every few seconds, because ages and rates change by themselves.
// One request at a time, at most one per second, none while the page is hidden.

const MIN_INTERVAL = 1000; // milliseconds
const INTERVAL = 5000;

export class Live {
  #source;
  #refresh;
  #stop = null;
  #due = false;
  #busy = false;
  #asked = 0;
  #timer = null;

  constructor(source, refresh) {
    this.#source = source;
    this.#refresh = refresh;
    this.paused = false;
    this.state = 'polling'; // live, away, polling, paused
    this.onState = () => {};
    document.addEventListener('visibilitychange', () => document.hidden || this.#news());
  }

  start() {
    this.#stop?.();
    if (this.paused) return;
    this.#stop = this.#source.can.live ? this.#source.watch(() => this.#news(), (state) => this.#say(state)) : null;
    this.#say('polling');
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.#news(), INTERVAL);
  }

  restart() {
    this.start();
  }

  // The page refreshed by itself: earlier changes are already shown.
  asked() {
    this.#asked = performance.now();
  }

  toggle() {
    this.paused = !this.paused;
    if (this.paused) {
      this.#stop?.();
      this.#stop = null;
      clearInterval(this.#timer);
      this.#say('paused');
    } else {
      this.start();
      this.#news();
    }
  }

  #say(state) {
    this.state = state;
    this.onState(state);
  }

  async #news() {
    if (document.hidden || this.paused) return;
    this.#due = true;
    if (this.#busy) return;
    this.#busy = true;
    while (this.#due && !document.hidden && !this.paused) {
      const wait = this.#asked + MIN_INTERVAL - performance.now();
      if (wait > 0) await new Promise((resolve) => { setTimeout(resolve, wait); });
      if (document.hidden || this.paused) break; // meanwhile
      this.#due = false;
      this.#asked = performance.now();
      await this.#refresh();
    }
    this.#busy = false;
  }
}
