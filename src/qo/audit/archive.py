"""The notes of the audit trail: one per write, merged into one per day.

    admin/audit/new/1763366400123-8f3a1c20be77    the records of one write; created, never changed
    admin/audit/2026-11-17                        the records of a day
    audit/new/1763366400123-8f3a1c20be77          the same, from a process whose credentials do not allow admin/
    admin/audit/unverified/2026-11-17             the records of a day from such processes

Writers only create notes, so they never contend, and need no right to read or change notes. A merge first writes the
day's note (compare and set) and then drops the merged notes. A reader takes each record once, by its id, so an
interrupted merge shows nothing twice.

Credentials that may only add records can add any number of them under any name. Such records are therefore stored
separately, with separate limits, and never displace a record that was written with an administrator's credentials.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from qo import notes
from qo.audit.records import (
    AuditNote,
    AuditRecord,
    StoredAction,
    decode,
    encode,
    shortened,
    stored_actions,
    unreadable_note,
)
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote, Refused, StorageError
from qo.ids import new_token
from qo.model import ADMIN_NOTES, AUDIT_NOTES, NEW, Note

PREFIX: Final = f"{ADMIN_NOTES}audit/"
DAY: Final = 86_400.0
RETENTION: Final = 90 * DAY  # seconds a record is kept
MAX_DAYS_FULL: Final = 10  # days that may be full at the same time
MAX_PER_DAY: Final = 1_000
MAX_PER_DAY_IN_ONE_OBJECT: Final = 100  # where every write of the queue also writes the trail
_STAMP_LENGTH = 13  # digits of the milliseconds in the name of a new note
_MAX_MERGE_ATTEMPTS = 50  # of one day's note, if other processes write it at the same time


class AuditSeries(NamedTuple):
    """Where records of one kind are stored, and their share of the limits."""

    inbox: str
    days: str
    verified: bool  # whether only an administrator's credentials can write there
    share: float = 1.0


VERIFIED: Final = AuditSeries(f"{PREFIX}new/", PREFIX, verified=True)
UNVERIFIED: Final = AuditSeries(f"{AUDIT_NOTES}new/", f"{PREFIX}unverified/", verified=False, share=0.25)
_SERIES = (VERIFIED, UNVERIFIED)


class AuditPage(NamedTuple):
    records: list[AuditRecord]  # newest first
    has_more: bool
    dropped: int  # records of the days read that were removed because there were too many
    unreadable: int  # records of the notes read that cannot be read


async def write_records(engine: Engine, records: list[AuditRecord]) -> None:
    """Write records under admin/ if the credentials allow it, otherwise where every role may add records.

    Raises StorageError.
    """
    name, data = f"{int(records[0].at * 1000):013d}-{new_token()[:12]}", encode(records)
    try:
        await engine.write_note(VERIFIED.inbox + name, data, expected=NEW)
    except Refused:
        await engine.write_note(UNVERIFIED.inbox + name, data, expected=NEW)


async def read_audit(
    engine: Engine,
    *,
    now: float,
    limit: int,
    since: float | None = None,
    before: tuple[float, str] | None = None,
    matches: Callable[[AuditRecord], bool] = lambda _: True,
) -> AuditPage:
    """Up to `limit` records that match, newest first, from `since` on and before the position `before` (`at`, `id`)."""
    since = max(now - RETENTION, now - RETENTION if since is None else since)
    found = _FoundRecords(
        lambda record: record.at >= since and (before is None or (record.at, record.id) < before) and matches(record)
    )
    for series in _SERIES:
        for note in await engine.notes(
            series.inbox
        ):  # before the days, so that records merged in the meantime are not missed
            found.take(note, series)
    for month, begins_at in _months(now if before is None else min(now, before[0]), since):
        for series in _SERIES:
            for note in await engine.notes(f"{series.days}{month}"):
                found.dropped += found.take(note, series)
        if sum(record.at >= begins_at for record in found.records.values()) > limit:
            break
    ordered = sorted(found.records.values(), key=lambda record: (record.at, record.id), reverse=True)
    return AuditPage(ordered[:limit], len(ordered) > limit, found.dropped, len(found.unreadable))


class _FoundRecords:
    """The matching records of several notes, each once. A verified record replaces others with its id."""

    def __init__(self, is_wanted: Callable[[AuditRecord], bool]) -> None:
        self._is_wanted = is_wanted
        self.records: dict[str, AuditRecord] = {}
        self.unreadable: set[str] = set()
        self.dropped = 0

    def take(self, note: Note, series: AuditSeries) -> int:
        """Collect the records of a note. Returns how many were dropped from it earlier."""
        try:
            document = decode(note)
        except DamagedNote as error:
            notes.report(error)
            return 0
        for action in stored_actions(document, at=0.0):
            if action.record is None:
                self.unreadable.add(action.id)
            elif self._is_wanted(action.record) and (series.verified or action.id not in self.records):
                self.records[action.id] = replace(action.record, verified=series.verified)
        return document.dropped


def _months(latest: float, earliest: float) -> Iterator[tuple[str, float]]:
    """Names and starts of months, latest first. Starts a day ahead, because clocks may be ahead."""
    at = datetime.fromtimestamp(latest + DAY, UTC)
    year, month = at.year, at.month
    while True:
        begins_at = datetime(year, month, 1, tzinfo=UTC).timestamp()
        yield f"{year:04d}-{month:02d}", begins_at
        if begins_at <= earliest or year == 1:
            return
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)


async def compact_audit(engine: Engine, now: float) -> None:
    """Merge new records into the notes of their days, and drop records beyond the retention and the limits."""
    if engine.is_remote:
        return  # the trail cannot be rewritten over HTTP; the server's monitor compacts it
    for series in _SERIES:
        await _compact(engine, series, now)


async def _compact(engine: Engine, series: AuditSeries, now: float) -> None:
    inbox = await engine.notes(series.inbox)
    if not inbox:
        return
    days: dict[str, list[StoredAction]] = {}
    for note in inbox:
        for action in await _new_actions(engine, note, series, now):
            at = min(action.at, now)  # a clock that is ahead must not keep a record forever
            if now - at <= RETENTION:
                days.setdefault(_day(at), []).append(shortened(action))
    most = int((MAX_PER_DAY_IN_ONE_OBJECT if engine.default_retention else MAX_PER_DAY) * series.share)
    for day, actions in days.items():
        await _merge(engine, series.days + day, actions, most)
    for note in inbox:
        await engine.drop_note(note.name)
    await _drop_old_days(engine, series.days, now, most * MAX_DAYS_FULL)


async def _new_actions(engine: Engine, note: Note, series: AuditSeries, now: float) -> list[StoredAction]:
    """The records of a new note.

    A note that cannot be read is kept in quarantine, which has no limit. A role that may only add notes must not fill
    it, so such a note of an unverified writer becomes one unreadable record.
    """
    written_at = _written_at(note, series, now)
    try:
        return stored_actions(decode(note), at=written_at)
    except DamagedNote as error:
        if series.verified:
            await notes.set_aside(engine, error)
            return []
        notes.report(error)
        return [unreadable_note(note, at=written_at)]


def _written_at(note: Note, series: AuditSeries, now: float) -> float:
    """When the note was written, by its name; `now` if the name has no time."""
    milliseconds = note.name.removeprefix(series.inbox).partition("-")[0]
    return int(milliseconds) / 1000 if milliseconds.isdecimal() and len(milliseconds) == _STAMP_LENGTH else now


async def _merge(engine: Engine, name: str, actions: list[StoredAction], most: int) -> None:
    for _ in range(_MAX_MERGE_ATTEMPTS):
        note = await engine.read_note(name)
        before = AuditNote(records=[])
        if note is not None:
            try:
                before = decode(note)
            except DamagedNote as error:
                await notes.set_aside(engine, error)
        together = list({action.id: action for action in (*actions, *stored_actions(before, at=0.0))}.values())
        kept = keep_fairly(together, most)
        after = AuditNote(records=[action.raw for action in kept], dropped=before.dropped + len(together) - len(kept))
        try:
            await engine.write_note(name, msgspec.json.encode(after), expected=note.version if note else NEW)
        except Conflict:
            continue
        return
    raise StorageError(f"note {name!r} is being changed by other processes; try again")


def keep_fairly(actions: Iterable[StoredAction], most: int) -> list[StoredAction]:
    """Up to `most`, oldest first. Of too many, the actors with the most records lose their oldest ones.

    So a token with thousands of actions a day does not displace the records of others.
    """
    ordered = sorted(actions, key=lambda action: (action.at, action.id))
    numbers = Counter(action.actor for action in ordered)

    def total(share: int) -> int:
        return sum(min(number, share) for number in numbers.values())

    share = max(1, bisect_right(range(1, most + 1), most, key=total))  # records each actor may keep
    kept: list[StoredAction] = []
    left: Counter[tuple[str, str]] = Counter()
    for action in reversed(ordered):
        left[action.actor] += 1
        if left[action.actor] <= share:
            kept.append(action)
    return kept[:most][::-1]


async def _drop_old_days(engine: Engine, days: str, now: float, most: int) -> None:
    """Drop days beyond the retention, and the oldest days while there are more than `most` records."""
    total = 0
    millennium = _day(now)[0]  # first digit of a day's name, so that other notes below `days` are not read
    for note in reversed(await engine.notes(days + millennium)):
        day = note.name.removeprefix(days)
        ended_at = _end(day)
        if ended_at is None:
            continue
        try:
            total += len(decode(note).records)
        except DamagedNote as error:
            notes.report(error)
        if now - ended_at > RETENTION or total > most:
            await engine.drop_note(note.name)


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _end(day: str) -> float | None:
    """When the day ends; None if the name is not a day."""
    try:
        return datetime.strptime(f"{day}+0000", "%Y-%m-%d%z").timestamp() + DAY
    except ValueError:
        return None
