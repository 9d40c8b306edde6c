// How many types of unfinished tasks a queue may have: the numbers of qo/notes.py and of POST /api/v1/controls/max-types.

export const DEFAULT_TYPE_LIMIT = 1000;
const MAX_TYPE_LIMIT = 10_000;

/** The limit that a text or a number says. Throws a RangeError with a message for people. */
export function typeLimitOf(value) {
  const limit = /^\d+$/.test(String(value).trim()) ? Number(value) : NaN;
  if (!(limit <= MAX_TYPE_LIMIT)) {
    throw new RangeError(`A limit on types is a whole number from 0 to ${MAX_TYPE_LIMIT.toLocaleString('en')}; 0 is no limit.`);
  }
  return limit;
}
