"""The replica of a shard while it is in use: loaded on demand, and replaced when it can no longer follow the log."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from qo.engines.replicated_log.record_store import START, LogPosition
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.runner import Runner, run_to_end
from qo.errors import StorageError

T = TypeVar("T")


class LiveReplica:
    """`lock` is held while a transaction is open and while records are applied. Reads do not need it."""

    def __init__(self, load: Callable[[], Awaitable[Replica]], new_runner: Callable[[], Runner]) -> None:
        self.lock = asyncio.Lock()
        self.is_behind = True  # the log may have records that the replica has not applied
        self.setbacks = 0  # how often a commit has found that the replica is behind
        self._load, self._is_closed = load, False
        self._run_write, self._run_read = new_runner(), new_runner()
        self._replica: Replica | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._replica is not None

    @property
    def position(self) -> LogPosition:
        """The last record that the replica has applied."""
        return START if self._replica is None else self._replica.position

    @property
    def replica(self) -> Replica:
        """The replica. The caller must have made sure that it is open."""
        if self._replica is None:
            raise RuntimeError("the replica is not open")
        return self._replica

    async def open(self) -> None:
        """Load the replica unless it is open."""
        if self._replica is not None:  # without the lock, which a commit may hold
            return
        async with self.lock:
            self._check_open()
            if self._replica is None:
                replica = await self._load()
                self._replica, self.is_behind = replica, True

    async def begin(self, create: Callable[[], Replica]) -> None:
        """Use a new replica that is known to be at the end of the log, unless one is open."""
        async with self.lock:
            self._check_open()
            if self._replica is None:
                replica = await run_to_end(self._run_write, create)
                # Its first records may be steps to the schema of this build.
                self._replica, self.is_behind = replica, replica.upgrade() is not None

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageError("this queue was closed; open it again")

    def fall_behind(self) -> None:
        """A commit has found that the log has records which the replica has not applied."""
        self.is_behind = True
        self.setbacks += 1

    async def write(self, work: Callable[[Replica], T]) -> T:
        """Run work on the connection that writes. The caller holds the lock."""
        replica = self.replica
        return await run_to_end(self._run_write, lambda: work(replica))

    async def read(self, work: Callable[[Replica], T]) -> T:
        """Run work that changes nothing on committed rows. It may run while a transaction is open."""
        replica = self.replica
        return await run_to_end(self._run_read, lambda: work(replica))

    async def drop(self) -> None:
        """Discard the replica: the next use loads another one."""
        async with self.lock:
            self._discard()

    def _discard(self) -> None:
        replica, self._replica, self.is_behind = self._replica, None, True
        if replica is not None:  # reads in progress finish first
            closing = asyncio.create_task(run_to_end(self._run_read, replica.close))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Discard the replica. No other one is loaded after that."""
        self._is_closed = True
        await self.drop()
        if self._closing:
            await asyncio.wait(self._closing)
