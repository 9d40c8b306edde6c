"""The rule for keys. It is the same for all buckets, so every bucket can hold every key."""

import re

_SEGMENT = r"[0-9A-Za-z_:.-]+"
_KEY = re.compile(rf"(?!.*(?:^|/)\.\.?(?:/|$)){_SEGMENT}(?:/{_SEGMENT})*", re.ASCII)
_MAX_KEY_LENGTH = 900  # bytes; S3's limit is 1,024, including the bucket's prefix
_MAX_SEGMENT_LENGTH = 200  # bytes; the limit of file systems is 255


def check_key(key: str) -> str:
    """Return the key. Raises ValueError if it is invalid: layouts make keys from checked names, so that is a bug."""
    if not _is_key(key):
        raise ValueError(f"{key!r:.100} is not a key: segments of [0-9A-Za-z_:.-] other than '.' and '..', joined by /")
    return key


def can_begin_key(prefix: str) -> bool:
    """Whether a key can begin with this prefix. Drivers reject others, and file systems read them as other paths."""
    folder, slash, _ = prefix.rpartition("/")
    return not slash or _is_key(folder)


def _is_key(key: str) -> bool:
    is_short = len(key) <= _MAX_KEY_LENGTH and max(map(len, key.split("/"))) <= _MAX_SEGMENT_LENGTH
    return is_short and _KEY.fullmatch(key) is not None
