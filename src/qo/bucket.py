"""The bucket port: named blobs with compare-and-set writes, and the rule for their names."""

import re
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from qo.model import ANY, NEW

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


__all__ = ["ANY", "NEW", "Blob", "Bucket"]


class Blob(NamedTuple):
    data: bytes
    version: str
    written_at: float  # by the store's clock


class Bucket(Protocol):
    """A flat namespace of blobs. A write is durable before it returns.

    Every method raises StorageError if the store cannot be reached, and Refused if the store rejects the request.
    """

    async def get(self, key: str) -> Blob | None:
        """The current blob, or None if there is none."""

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        """Write if the stored version is `expected` (or NEW, or ANY); return the new one. Raises Conflict otherwise."""

    async def delete(self, key: str) -> None:
        """Remove the blob, regardless of its version. A missing blob is not an error."""

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        """Yield the keys that start with `prefix` and sort after `after`, in byte order."""

    async def versions(self, key: str) -> list[Blob]:
        """Every stored version, oldest first; only the current one if the store does not keep versions."""

    def now(self) -> float:
        """The current time by the store's clock."""
