"""Counts what this process settles, and writes it to the store every few seconds.

One note for each hour, under a name of its own, so no two processes write the same one. A process that is killed loses
what it counted since its last write: at most `_LONGEST_PAUSE`, and 5 s where the store answers quickly. A process that
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
_SHORTEST_PAUSE, _LONGEST_PAUSE = 5.0, 30.0  # seconds between two writes
_COST_FACTOR = 200  # a pause lasts this many times as long as the last write took: buckets bill for each write
_LAST_WRITE = 2.0  # seconds the write at the end may take
_HOURS_KEPT = 2  # hours a process that cannot reach the store remembers


class StatsRecorder:
    """Of one queue, used on its event loop."""

    def __init__(self, engine: Engine, *, clock: Clock = system_clock) -> None:
        self._engine, self._clock, self._pid = engine, clock, os.getpid()
        self._process = new_worker_id(socket.gethostname())
        self._minutes: dict[int, Rows] = {}
        self._unwritten: set[int] = set()  # hours
        self.is_automatic = True  # False: written only by `flush` and `close`
        self._pause = _SHORTEST_PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def row(self, key: RowKey) -> StatsRow:
        """The row of the current minute, to count in. It is written to the store soon."""
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
        """Write what was counted since the last write."""
        async with self._lock:
            if self._pid != os.getpid():  # a fork: the parent writes what the parent counted
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
            self._pause = _LONGEST_PAUSE
            raise
        self._pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, _COST_FACTOR * (boot_clock() - began)))

    def _forget(self) -> None:
        """Hours that are over and written."""
        last = int(self._clock()) // HOUR
        for minute in [at for at in self._minutes if at // HOUR < last and at // HOUR not in self._unwritten]:
            del self._minutes[minute]
        for hour in [hour for hour in self._unwritten if hour < last - _HOURS_KEPT]:
            self._unwritten.discard(hour)

    async def close(self) -> None:
        """Write the rest, if the store answers soon."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unwritten:
            try:
                async with asyncio.timeout(_LAST_WRITE):
                    await self.flush()
            except (QoError, TimeoutError) as error:
                log.warning("the statistics of the last %.0f s are lost: %s", self._pause, str(error) or "no answer")
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=_LAST_WRITE)
