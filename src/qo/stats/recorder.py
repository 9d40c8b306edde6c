"""Counts the tasks this process settles, and writes the counts to the store every few seconds.

Each process writes one note per hour, so no two processes write the same note. A process that is killed loses the
counts since its last write: at most `_MAX_WRITE_INTERVAL`, and 5 s where the store answers quickly. A process that
settles nothing writes nothing.
"""

import asyncio
import logging
import os
import socket
from contextlib import suppress

import msgspec

from qo.clock import Clock, boot_clock, system_clock
from qo.engine import Engine
from qo.errors import QoError
from qo.ids import new_worker_id
from qo.model import ANY
from qo.stats.archive import HOUR, MINUTE, note_name
from qo.stats.rows import Interval, RowKey, Rows, StatsDocument, StatsRow, row_of, to_stored

log = logging.getLogger("qo.stats")
_MIN_WRITE_INTERVAL, _MAX_WRITE_INTERVAL = 5.0, 30.0  # seconds
_DURATION_FACTOR = 200  # the interval is this many times the duration of the last write, because slow writes cost money
_LAST_WRITE_TIMEOUT = 2.0  # seconds for the write at the end
_MAX_UNWRITTEN_HOURS = 2  # hours kept while the store is unreachable


class StatsRecorder:
    """The recorder of one client. Use it only on the client's event loop."""

    def __init__(self, engine: Engine, *, clock: Clock = system_clock) -> None:
        self._engine, self._clock, self._pid = engine, clock, os.getpid()
        self._process = new_worker_id(socket.gethostname())
        self._minutes: dict[int, Rows] = {}
        self._unwritten: set[int] = set()  # hours
        self.is_automatic = True  # False: written only by `flush` and `close`
        self._pause = _MIN_WRITE_INTERVAL
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def row(self, key: RowKey) -> StatsRow:
        """The row of the current minute. The caller counts in it; it is written to the store soon."""
        minute = int(self._clock()) // MINUTE * MINUTE
        rows = self._minutes.get(minute)
        if rows is None:
            rows = self._minutes[minute] = {}
        self._unwritten.add(minute // HOUR)
        if self._timer is None and self.is_automatic:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._write_now)
        return row_of(rows, key)

    def _write_now(self) -> None:
        self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        self._timer = None
        with suppress(QoError):  # the next write tries again
            await self.flush()
        if self._unwritten and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._write_now)

    async def flush(self) -> None:
        """Write the counts since the last write. Raises StorageError."""
        async with self._lock:
            if self._pid != os.getpid():  # a fork: the parent writes these counts
                self._unwritten.clear()
                self._minutes.clear()
            for hour in sorted(self._unwritten):
                await self._write_hour(hour)
            self._forget()

    async def _write_hour(self, hour: int) -> None:
        minutes = [Interval(at, MINUTE, rows) for at, rows in sorted(self._minutes.items()) if at // HOUR == hour]
        document = msgspec.json.encode(StatsDocument(intervals=[to_stored(minute) for minute in minutes]))
        self._unwritten.discard(hour)
        began = boot_clock()
        try:
            await self._engine.write_note(note_name(hour, self._process), document, expected=ANY)
        except BaseException:
            self._unwritten.add(hour)
            self._pause = _MAX_WRITE_INTERVAL
            raise
        self._pause = min(_MAX_WRITE_INTERVAL, max(_MIN_WRITE_INTERVAL, _DURATION_FACTOR * (boot_clock() - began)))

    def _forget(self) -> None:
        """Drop hours that are over and written, and hours that are too old to write."""
        last = int(self._clock()) // HOUR
        for minute in [at for at in self._minutes if at // HOUR < last and at // HOUR not in self._unwritten]:
            del self._minutes[minute]
        for hour in [hour for hour in self._unwritten if hour < last - _MAX_UNWRITTEN_HOURS]:
            self._unwritten.discard(hour)

    async def close(self) -> None:
        """Write the remaining counts, if the store answers within `_LAST_WRITE_TIMEOUT`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unwritten:
            try:
                async with asyncio.timeout(_LAST_WRITE_TIMEOUT):
                    await self.flush()
            except (QoError, TimeoutError) as error:
                log.warning("the statistics of the last %.0f s are lost: %s", self._pause, str(error) or "no answer")
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=_LAST_WRITE_TIMEOUT)
