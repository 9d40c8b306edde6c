"""The notes that hold statistics: one per process and hour, written every few seconds, merged after the hour has ended.

    stats/2026-11-17T06/web1-4711-a1b2c3    the counts of one process in that hour; only it writes this note
    stats/2026-11-17T06/merged              the counts of all processes, and which processes it includes

A note that `merged` names is not counted again, so a merge that is interrupted between its two steps (write the
merged note, drop the others) counts nothing twice, and the next one drops the rest.

Each process writes one note per hour, so no two processes write the same note. A process that is killed loses the
counts since its last write: at most `_MAX_WRITE_INTERVAL`, and 5 s where the store answers quickly. A process that
settles nothing writes nothing.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec

from qo import notes
from qo.clock import Clock, boot_clock, system_clock
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote, QoError
from qo.ids import new_worker_id
from qo.model import ANY, NEW, Note
from qo.stats.rows import (
    Interval,
    RowKey,
    Rows,
    StatsDocument,
    StatsRow,
    add_up,
    from_stored,
    merge_rows,
    row_of,
    to_stored,
)

log = logging.getLogger("qo.stats")
PREFIX: Final = "stats/"
MERGED: Final = "merged"
MINUTE: Final = 60
HOUR: Final = 3600
RETENTION: Final = 7 * 24 * HOUR  # seconds statistics are kept
_MERGE_AFTER = 300  # seconds after the end of an hour: by then every process has written what it counted
_MAX_SINGLE_HOURS = 4  # up to this many hours are listed one by one, more in one listing
_MIN_WRITE_INTERVAL, _MAX_WRITE_INTERVAL = 5.0, 30.0  # seconds
_DURATION_FACTOR = 200  # the interval is this many times the duration of the last write, because slow writes cost money
_LAST_WRITE_TIMEOUT = 2.0  # seconds for the write at the end
_MAX_UNWRITTEN_HOURS = 2  # hours kept while the store is unreachable


async def read_stats(engine: Engine, since: float, now: float) -> list[Interval]:
    """The intervals from `since` to `now`, oldest first, including one that began earlier and ends after `since`."""
    first, last = int(since) // HOUR, int(now) // HOUR
    if last - first < _MAX_SINGLE_HOURS:
        found = [note for hour in range(first, last + 1) for note in await engine.notes(f"{_folder(hour)}/")]
    else:
        found = await engine.notes(PREFIX)
    intervals: dict[tuple[int, int], Interval] = {}
    for documents in _by_hour(found).values():
        for each in _intervals(documents):
            if each.start + each.seconds > since and each.start <= now:
                known = intervals.setdefault(each[:2], Interval(each.start, each.seconds, {}))
                merge_rows(known.rows, each.rows)
    return sorted(intervals.values(), key=lambda interval: interval[:2])


async def compact_stats(engine: Engine, now: float) -> None:
    """Merge the notes of past hours, and drop those beyond the retention. Raises StorageError.

    The last hour at least keeps its minutes; older hours become one interval each.
    """
    for folder, found in _grouped(await engine.notes(PREFIX)).items():
        started = _start(folder)
        if started is None:
            continue
        age = now - (started + HOUR)
        if age > RETENTION:
            for note in found:
                await engine.drop_note(note.name)
        elif age > _MERGE_AFTER:
            await _merge(engine, folder, found, whole=age > _MERGE_AFTER + HOUR)


async def _merge(engine: Engine, folder: str, found: list[Note], *, whole: bool) -> None:
    documents = _documents(found)
    merged = documents.get(MERGED)
    sources = documents.keys() - {MERGED}
    is_whole = merged is not None and all(each.seconds == HOUR for each in merged.intervals)
    if not sources - _names(merged) and is_whole >= whole:
        await _drop(engine, folder, sources)
        return
    minutes: dict[int, list[Interval]] = {}
    for interval in _intervals(documents):
        minutes.setdefault(interval.start // HOUR * HOUR if whole else interval.start, []).append(interval)
    width = HOUR if whole else MINUTE
    together = [Interval(start, width, add_up(each)) for start, each in sorted(minutes.items())]
    document = StatsDocument(
        intervals=[to_stored(interval) for interval in together], merged=frozenset(sources) | _names(merged)
    )
    version = next((note.version for note in found if note.name == f"{folder}/{MERGED}"), NEW)
    with suppress(Conflict):  # another monitor was faster
        await engine.write_note(f"{folder}/{MERGED}", msgspec.json.encode(document), expected=version)
        await _drop(engine, folder, sources)


async def _drop(engine: Engine, folder: str, sources: Iterable[str]) -> None:
    for source in sorted(sources):
        await engine.drop_note(f"{folder}/{source}")


def note_name(hour: int, process: str) -> str:
    return f"{_folder(hour)}/{process}"


def _folder(hour: int) -> str:
    return f"{PREFIX}{datetime.fromtimestamp(hour * HOUR, UTC):%Y-%m-%dT%H}"


def _start(folder: str) -> int | None:
    """When the hour began; None if this is not a folder of statistics."""
    try:
        return int(datetime.strptime(f"{folder.removeprefix(PREFIX)}+0000", "%Y-%m-%dT%H%z").timestamp())
    except ValueError:
        return None


def _grouped(found: Iterable[Note]) -> dict[str, list[Note]]:
    groups: dict[str, list[Note]] = {}
    for note in found:
        groups.setdefault(note.name.rpartition("/")[0], []).append(note)
    return groups


def _documents(found: Iterable[Note]) -> dict[str, StatsDocument]:
    """The documents by process. A damaged note is reported once and left in place."""
    documents = {}
    for note in found:
        try:
            documents[note.name.rpartition("/")[2]] = notes.decode(note, StatsDocument)
        except DamagedNote as error:
            notes.report(error)
    return documents


def _by_hour(found: Iterable[Note]) -> dict[str, dict[str, StatsDocument]]:
    return {folder: _documents(each) for folder, each in _grouped(found).items()}


def _intervals(documents: dict[str, StatsDocument]) -> list[Interval]:
    """The intervals of one hour, each count once."""
    merged = _names(documents.get(MERGED))
    counted = [document for process, document in documents.items() if process not in merged]
    return [from_stored(stored) for document in counted for stored in document.intervals]


def _names(merged: StatsDocument | None) -> frozenset[str]:
    return frozenset() if merged is None else merged.merged


class StatsRecorder:
    """Counts the tasks that one client settles. Use it only on the client's event loop."""

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
        if self.is_automatic:
            self._write_soon()
        return row_of(rows, key)

    def _write_soon(self) -> None:
        """Start the timer of the next write, unless a write is running: `_write` starts it again."""
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._write_now)

    def _write_now(self) -> None:
        self._timer, self._writing = None, asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            with suppress(QoError):  # the next write tries again
                await self.flush()
        finally:
            self._writing = None
        if self._unwritten:
            self._write_soon()

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
        self._stop_timer()
        if self._unwritten:
            try:
                async with asyncio.timeout(_LAST_WRITE_TIMEOUT):
                    await self.flush()
            except (QoError, TimeoutError) as error:
                log.warning("the statistics of the last %.0f s are lost: %s", self._pause, str(error) or "no answer")
        if (writing := self._writing) is not None:
            await asyncio.wait([writing], timeout=_LAST_WRITE_TIMEOUT)
            writing.cancel()  # the event loop may end now
            await asyncio.wait([writing], timeout=_LAST_WRITE_TIMEOUT)
        self._stop_timer()  # a write that failed meanwhile has started it

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
