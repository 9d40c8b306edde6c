"""The notes that hold statistics: one per process and hour, merged after the hour is over.

    stats/2026-11-17T06/web1-4711-a1b2c3    the counts of one process in that hour; only it writes this note
    stats/2026-11-17T06/merged              the counts of all processes, and which processes it includes

A note that `merged` names is not counted again, so a merge that is interrupted between its two steps (write the
merged note, drop the others) counts nothing twice, and the next one drops the rest.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec

from qo import notes
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote
from qo.model import NEW, Note
from qo.stats.rows import Interval, StatsDocument, add_up, from_stored, merge_rows, to_stored

PREFIX: Final = "stats/"
MERGED: Final = "merged"
MINUTE: Final = 60
HOUR: Final = 3600
RETENTION: Final = 7 * 24 * HOUR  # seconds statistics are kept
_MERGE_AFTER = 300  # seconds after the end of an hour: by then every process has written what it counted
_MAX_SINGLE_HOURS = 4  # up to this many hours are listed one by one, more in one listing


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
