"""The bucket port: named blobs with compare-and-set writes."""

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from qo.model import ANY, NEW

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
        """Remove the blob, whatever its version. A missing blob is not an error."""

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        """Yield the keys that start with `prefix` and sort after `after`, in byte order."""

    async def versions(self, key: str) -> list[Blob]:
        """Every stored version, oldest first; only the current one if the store does not keep versions."""

    def now(self) -> float:
        """The current time by the store's clock."""
