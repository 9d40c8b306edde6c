// The store's clock, seen through the Date of its answers, as the Python side sees it (qo/buckets/store_clock.py):
// leases and back-offs are instants of the store, and a computer's own clock may be off by minutes.

const TICK = 1; // seconds; a Date has no fractions

/** The smallest distance that explains a Date, so that a clock within its second is left alone. */
export function leastOffset(sentAt, date, receivedAt) {
  return Math.min(Math.max(0, date - receivedAt), date + TICK - sentAt);
}

export class StoreClock {
  #offset = 0;

  constructor(clock = () => Date.now() / 1000) {
    this.clock = clock;
    this.isSet = false; // by an answer; until then it is this computer's
  }

  get offset() {
    return this.#offset;
  }

  now() {
    return this.clock() + this.#offset;
  }

  learn(sentAt, header, receivedAt) {
    const date = Date.parse(header ?? '') / 1000;
    if (!Number.isFinite(date)) return;
    this.#offset = leastOffset(sentAt, date, receivedAt);
    this.isSet = true;
  }
}
