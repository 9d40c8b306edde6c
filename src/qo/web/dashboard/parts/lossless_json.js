// Keeps integers beyond 2^53, which JavaScript numbers would round.

export class LosslessInteger {
  constructor(source) {
    this.source = source;
  }

  toString() {
    return this.source;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.source) : this.source;
  }
}

export function parse(text) {
  return JSON.parse(text, (key, value, context) => (typeof value === 'number' && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? '')
    ? new LosslessInteger(context.source) : value));
}
