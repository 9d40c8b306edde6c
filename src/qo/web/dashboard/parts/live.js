// When to ask again: on news from the source, and every few seconds since ages and rates move without news.
// One question at a time, at most one a second, none while nobody looks.

const QUICKEST = 1000; // milliseconds
const CALM = 5000;

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
    this.#timer = setInterval(() => this.#news(), CALM);
  }

  restart() {
    this.start();
  }

  // The page asked by itself: news from before that is no news.
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
      const wait = this.#asked + QUICKEST - performance.now();
      if (wait > 0) await new Promise((resolve) => { setTimeout(resolve, wait); });
      if (document.hidden || this.paused) break; // meanwhile
      this.#due = false;
      this.#asked = performance.now();
      await this.#refresh();
    }
    this.#busy = false;
  }
}
