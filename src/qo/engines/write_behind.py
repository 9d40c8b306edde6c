"""Engines that answer a write before their bucket has it."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class WriteBehind(Protocol):
    """An engine that may answer a write before its bucket has it, and read a copy older than the bucket's."""

    @property
    def is_synced(self) -> bool:
        """Whether the bucket has every write answered so far."""

    async def confirmed(self) -> bool:
        """Wait until the bucket has every write answered so far. False: those writes are lost."""

    async def sync(self) -> None:
        """Bring every write to the bucket now and read what it holds. Raises Conflict if the writes are lost."""
