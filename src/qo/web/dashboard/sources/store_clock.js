// The clock of the store or server, from the Date headers of its responses, as in qo/buckets/cloud.py. Leases and back-offs
// use the time of the store, and the local clock may be wrong by minutes.

const TICK = 1; // seconds; a Date header has no fractions

/** The smallest offset that explains a Date header, so that a correct clock is not changed. */
export function leastOffset(sentAt, date, receivedAt) {
  return Math.min(Math.max(0, date - receivedAt), date + TICK - sentAt);
}

export class StoreClock {
  #offset = 0;

  constructor(clock = () => Date.now() / 1000) {
    this.clock = clock;
    this.isSet = false; // by a response; until then the local clock is used
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
