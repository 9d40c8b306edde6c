// How long a read is reused: proportional to its duration, so that a large queue does not cause continuous requests.

const FACTOR = 20; // times the duration of the read
const MAX_INTERVAL = 60_000; // milliseconds

export class ReadInterval {
  #until = -Infinity;

  get isOver() {
    return performance.now() >= this.#until;
  }

  /** Returns the result of `read`. The interval starts at its end. */
  async measure(read) {
    const began = performance.now();
    const found = await read();
    this.#until = performance.now() + Math.min(MAX_INTERVAL, FACTOR * (performance.now() - began));
    return found;
  }

  end() {
    this.#until = -Infinity;
  }
}
