// The limit of types with unfinished tasks per queue, with the numbers of qo/notes.py and POST /api/v1/controls/max-types.

export const DEFAULT_TYPE_LIMIT = 1000;
const MAX_TYPE_LIMIT = 10_000;

/** The limit in a text or a number. Throws a RangeError with a message for the user. */
export function typeLimitOf(value) {
  const limit = /^\d+$/.test(String(value).trim()) ? Number(value) : NaN;
  if (!(limit <= MAX_TYPE_LIMIT)) {
    throw new RangeError(`The limit must be a whole number from 0 to ${MAX_TYPE_LIMIT.toLocaleString('en')}; 0 means no limit.`);
  }
  return limit;
}
