// How long a read serves before the store is asked again: the longer the read took, the longer, so that a large queue
// does not cost a request after the other.

const FACTOR = 20; // times as long as the read took
const MAX_INTERVAL = 60_000; // milliseconds

export class ReadInterval {
  #until = -Infinity;

  get isOver() {
    return performance.now() >= this.#until;
  }

  /** What `read` returns. The interval begins when it has ended. */
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
