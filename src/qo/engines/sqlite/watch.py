"""Waits until a claim may succeed: for writes of this engine, of other processes, and for tasks to become due."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Lock
from typing import TypeVar

import apsw

from qo.clock import Clock
from qo.model import ClaimRequest
from qo.sqlite_tables.driver_errors import to_qo_error
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.statements import SQL
from qo.sqlite_tables.transaction import ReadyLanes

T = TypeVar("T")

_MIN_INTERVAL, _USUAL_INTERVAL, _MAX_INTERVAL = 0.001, 0.025, 0.1  # between polls
_FAST_GROWTH, _SLOW_GROWTH = 1.3, 1.01  # of the interval, up to the usual one and above


class FileWatch:
    """Polls the file from the event loop itself.

    A poll takes about 10 µs and, with a write-ahead log, never waits. Passing it to a thread would cost several times
    more.
    """

    def __init__(self, path: Path, db: apsw.Connection, clock: Clock) -> None:
        self._path = path
        self._db = db
        self._clock = clock
        self._ready = ReadyLanes(db, SqliteLanes(db))
        self._lock = Lock()  # one thread at a time may use the connection, and event loops may run in several
        self._sleepers: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}
        self._changes = 0
        self._interval = _MIN_INTERVAL

    def notify(self) -> None:
        """Wake all waiters: this engine wrote something claimable. Called from the thread that wrote it."""
        self._changes += 1
        for loop in list(self._sleepers):
            try:
                loop.call_soon_threadsafe(self._wake, loop)
            except RuntimeError:  # that loop is closed
                self._sleepers.pop(loop, None)

    def close(self) -> None:
        """Close the connection when no thread uses it."""
        with self._lock:
            self._db.close()

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        for sleeper in self._sleepers.pop(loop, ()):
            _end(sleeper)

    async def wait(self, request: ClaimRequest, timeout: float, stage: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        while True:
            changes, seen = self._changes, self._version()  # read before the check, so that no change is missed
            if self._is_due():
                await stage()
            if self._is_claimable(request) or not await self._sleep(changes, seen, ends):
                return

    async def _sleep(self, changes: int, seen: int | None, ends: float) -> bool:
        """Wait for a change. False: the time is up."""
        loop = asyncio.get_running_loop()
        coming = self._next_due()
        while self._changes == changes:
            left = ends - loop.time()
            if left <= 0:
                return False
            due_in = left if coming is None else coming - self._clock()
            if due_in <= 0:
                return True
            await self._doze(loop, min(left, due_in, self._interval))
            if self._version() != seen:
                break
            self._interval = slower(self._interval)
        self._interval = _MIN_INTERVAL
        return True

    async def _doze(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        sleeper = loop.create_future()
        sleepers = self._sleepers.setdefault(loop, set())
        sleepers.add(sleeper)
        alarm = loop.call_later(seconds, _end, sleeper)
        try:
            await sleeper
        finally:
            alarm.cancel()
            sleepers.discard(sleeper)
            if not sleepers:
                self._sleepers.pop(loop, None)

    # --- polls. If the file is busy (another process recovers or closes it), the result is unknown: poll again.

    def _version(self) -> int | None:
        """Changes with every commit by another connection, including this engine's writer."""
        return self._poll(lambda db: db.execute("PRAGMA data_version").get)

    def _coming(self) -> float | None:
        """The time at which the next task that is not ready becomes due."""
        return self._poll(lambda db: db.execute(SQL["coming"]).get)

    def _next_due(self) -> float | None:
        """The same, also for tasks that are not indexed yet."""
        unindexed = self._poll(lambda db: db.execute(SQL["coming_unindexed"], (self._clock(),)).get)
        return min((at for at in (self._coming(), unindexed) if at is not None), default=None)

    def _is_due(self) -> bool:
        coming = self._coming()
        return coming is not None and coming <= self._clock()

    def _is_claimable(self, request: ClaimRequest) -> bool:
        return bool(self._poll(lambda _: self._ready.has_any(request, self._clock())))

    def _poll(self, read: Callable[[apsw.Connection], T]) -> T | None:
        with self._lock:
            try:
                return read(self._db)
            except apsw.BusyError:
                return None
            except apsw.Error as error:
                raise to_qo_error(self._path, error) from error


def slower(interval: float) -> float:
    """The next poll interval: a few milliseconds while the queue is in use, 100 ms after seconds without changes."""
    return min(_MAX_INTERVAL, interval * (_FAST_GROWTH if interval < _USUAL_INTERVAL else _SLOW_GROWTH))


def _end(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
