"""Protocols of engines that acknowledge a write before the bucket has it, or write when their owner decides."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class WriteBehind(Protocol):
    """An engine that may acknowledge a write before its bucket has it, and may read from an older copy."""

    @property
    def is_synced(self) -> bool:
        """Whether the bucket has every acknowledged write."""

    async def confirmed(self) -> bool:
        """Wait until the bucket has every acknowledged write. False: those writes are lost."""

    async def sync(self) -> None:
        """Write everything to the bucket now and read its content. Raises Conflict if the writes are lost."""


class FlushedDatabase(Protocol):
    """A database in a bucket whose owner controls when it is written."""

    @property
    def lost(self) -> int:
        """How many acknowledged changes never reached the bucket."""

    async def flush(self) -> None:
        """Write every change to the bucket now."""

    def abandon(self) -> None:
        """Stop the background tasks without waiting for them."""
