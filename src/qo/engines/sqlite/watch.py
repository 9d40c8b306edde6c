"""Waiting until a claim may succeed: for this engine's own writes, for other processes', and for the time to come."""

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
from qo.sqlite_tables.ready_lanes import ReadyLanes
from qo.sqlite_tables.statements import SQL

T = TypeVar("T")

_FASTEST, _USUAL, _SLOWEST = 0.001, 0.025, 0.1  # seconds between two looks
_AT_ONCE, _SLOWLY = 1.3, 1.01  # how they grow when nothing happens


class FileWatch:
    """Looks at the file from the event loop itself: a look takes some ten microseconds and, in the write-ahead log's
    mode, waits for nobody; handing it to a thread would cost several times as much, at every look.
    """

    def __init__(self, path: Path, db: apsw.Connection, clock: Clock) -> None:
        self._path = path
        self._db = db
        self._clock = clock
        self._ready = ReadyLanes(db, SqliteLanes(db))
        self._lock = Lock()  # a connection serves one thread at a time, and loops may live in several
        self._sleepers: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}
        self._told = 0
        self._interval = _FASTEST

    def tell(self) -> None:
        """This engine wrote something claimable. Called by the writer's thread."""
        self._told += 1
        for loop in list(self._sleepers):
            try:
                loop.call_soon_threadsafe(self._wake, loop)
            except RuntimeError:  # that loop was closed
                self._sleepers.pop(loop, None)

    def close(self) -> None:
        """Between two looks: a connection may not be closed while a thread uses it."""
        with self._lock:
            self._db.close()

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        for sleeper in self._sleepers.pop(loop, ()):
            _end(sleeper)

    async def wait(self, request: ClaimRequest, timeout: float, stage: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        while True:
            told, seen = self._told, self._version()  # before looking, so that nothing falls in between
            if self._is_due():
                await stage()
            if self._is_claimable(request) or not await self._sleep(told, seen, ends):
                return

    async def _sleep(self, told: int, seen: int | None, ends: float) -> bool:
        """Until something has happened. False: time is up."""
        loop = asyncio.get_running_loop()
        coming = self._coming()
        while self._told == told:
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
        self._interval = _FASTEST
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

    # --- looking. Busy is rare here (another process recovers or closes the file): then nothing is known, look again.

    def _version(self) -> int | None:
        """Changes with every commit by anyone else, the writer included."""
        return self._look(lambda db: db.execute("PRAGMA data_version").get)

    def _coming(self) -> float | None:
        """When the next task that is not ready yet becomes due."""
        return self._look(lambda db: db.execute(SQL["coming"]).get)

    def _is_due(self) -> bool:
        coming = self._coming()
        return coming is not None and coming <= self._clock()

    def _is_claimable(self, request: ClaimRequest) -> bool:
        return bool(self._look(lambda _: self._ready.first(request, self._clock())))

    def _look(self, read: Callable[[apsw.Connection], T]) -> T | None:
        with self._lock:
            try:
                return read(self._db)
            except apsw.BusyError:
                return None
            except apsw.Error as error:
                raise to_qo_error(self._path, error) from error


def slower(interval: float) -> float:
    """A queue in use is looked at every few milliseconds; ten times a second is enough after seconds of quiet."""
    return min(_SLOWEST, interval * (_AT_ONCE if interval < _USUAL else _SLOWLY))


def _end(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
