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
    """Where the bytes of a layout live. A write is durable before it returns."""

    async def get(self, key: str) -> Blob | None:
        """The blob as it is now."""

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        """Write if the stored version is `expected` (or NEW, or ANY) and return the new one, else raise Conflict."""

    async def delete(self, key: str) -> None:
        """Remove a blob, whatever its version; it may be gone already."""

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        """Keys that begin with `prefix` and come behind `after`, in byte order."""

    async def versions(self, key: str) -> list[Blob]:
        """Every version the store kept, oldest first; only the present one where it keeps none."""

    def now(self) -> float:
        """The store's clock."""
