"""Ids of tasks with an idempotency key. The id is derived from the key, so `add` rejects a duplicate atomically."""

from hashlib import sha256


def derived_id(queue: str, type: str, key: str) -> str:
    """A UUID (version 8) for the task with this key in this queue and type.

    The hashed text contains lengths, so that ("a", "bc") and ("ab", "c") differ.
    """
    scope = f"{len(queue)}:{queue}:{len(type)}:{type}:{key}"
    digest = sha256(scope.encode(errors="surrogatepass")).hexdigest()
    return (
        f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{'89ab'[int(digest[16], 16) % 4]}{digest[17:20]}-{digest[20:32]}"
    )
