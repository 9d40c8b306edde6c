"""The scheduler submits the tasks of schedules at their fire times. It runs in every monitor.

Any number of schedulers may run. The compare-and-set write of a schedule's note decides a fire time: one scheduler
wins, writes what it will submit into the note, submits it, and removes it from the note. If it dies in between, another
scheduler finds the rest in the note and submits it under the same ids. The leading monitor fires immediately. The
others fire the remaining ones a little later, which saves requests.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from qo import notes
from qo.backoff import Backoff
from qo.client import Client
from qo.clock import Clock
from qo.codec import SEALED
from qo.engines.requests import in_parallel
from qo.errors import Conflict, DamagedNote, NewerFormat, QoError, StorageError
from qo.model import Note
from qo.schedules.decision import decide, decided_until, delivered, next_fire_of, refused, taken_over
from qo.schedules.schedule import ScheduleNote
from qo.schedules.schedule_notes import SCHEDULES, change_schedule, decode_schedule, local_changes
from qo.store_time import StoreTime

log = logging.getLogger("qo.schedules")
_MIN_REFRESH, _MAX_REFRESH = 5.0, 60.0  # seconds between two readings of all schedules
_FOLLOWER_FACTOR = 5  # a scheduler that does not lead, or has found no schedule, waits this many times longer
_REFRESH_FACTOR = 2400  # and at least this many times the duration of a reading: requests of cloud stores cost money
_FOLLOWER_DELAY = 2.0  # seconds by which a scheduler that does not lead fires later
_TAKE_OVER_AFTER = 3.0  # seconds after which a decided fire that is not submitted belongs to any scheduler
# Seconds from a decision to its submission; after a longer pause of the process, others have submitted it.
_SUBMIT_WITHIN = 10.0
_MIN_PAUSE, _MAX_PAUSE = 0.02, 1.0  # seconds between two checks
_MAX_FIRED_AT_ONCE = 500  # schedules
_READ_ALL_FROM = 8  # due schedules from which one reading of all is better than one reading each


class _KnownSchedule(NamedTuple):
    """The cached state of one note."""

    version: str
    stored: ScheduleNote | None  # None: it cannot be read or submitted here
    fires_at: float | None  # its next fire time


class _Decided(NamedTuple):
    """A note with fires to submit."""

    note: Note
    stored: ScheduleNote
    at: float  # when it was decided, by the local clock that is never set


class Scheduler:
    def __init__(
        self, client: Client, *, clock: StoreTime, elapsed: Clock, is_leader: Callable[[], bool] = lambda: True
    ) -> None:
        self._client, self._clock, self._elapsed, self._is_leader = client, clock, elapsed, is_leader
        self._known: dict[str, _KnownSchedule] = {}
        self._refreshed_at, self._refresh_interval = float("-inf"), 0.0
        self._seen_changes = 0
        self._backoff = Backoff(0.5, 30.0)

    async def run(self) -> None:
        """Fire until cancelled. Waits while the store is unreachable."""
        while True:
            try:
                pause = await self.check()
                self._backoff.reset()
            except NewerFormat:
                return  # the monitor raises it
            except StorageError as error:
                pause = self._backoff.next()
                log.warning("schedules wait for the store: %s", error)
            except Exception:  # it is logged, and the next check runs: one bad schedule must not stop the others
                pause = self._backoff.next()
                log.exception("a check of the schedules failed")
            await asyncio.sleep(pause)

    async def check(self) -> float:
        """Submit what is due. Returns the seconds until the next check. Raises StorageError."""
        await self._clock.update()
        fresh: list[Note] = []
        if self._elapsed() >= self._refresh_at() or self._seen_changes != local_changes.number:
            fresh = await self._refresh()
        if due := self._due():
            found = await self._read(due, fresh)
            for start in range(0, len(found), _MAX_FIRED_AT_ONCE):
                await self._fire(found[start : start + _MAX_FIRED_AT_ONCE])
        return self._pause()

    async def _refresh(self) -> list[Note]:
        """Read all schedules. Only notes that have changed are decoded."""
        began, changes = self._elapsed(), local_changes.number
        found = await self._client.engine.notes(SCHEDULES)
        self._known = {note.name: self._know(note) for note in found}
        self._refreshed_at, self._seen_changes = self._elapsed(), changes
        took = self._refreshed_at - began
        self._refresh_interval = min(_MAX_REFRESH, max(_MIN_REFRESH, _REFRESH_FACTOR * took))
        return found

    def _refresh_at(self) -> float:
        is_needed = self._is_leader() and self._known
        return self._refreshed_at + self._refresh_interval * (1 if is_needed else _FOLLOWER_FACTOR)

    def _know(self, note: Note) -> _KnownSchedule:
        known, now = self._known.get(note.name), self._clock()
        if known is not None and known.version == note.version and not _is_set_back(known.stored, now):
            return known
        try:
            stored = decode_schedule(note)
            if stored.schedule.task.payload.startswith(SEALED):  # only a scheduler with the key can submit it
                return _KnownSchedule(note.version, None, None)
            return _KnownSchedule(note.version, stored, now if _is_set_back(stored, now) else next_fire_of(stored, now))
        except DamagedNote as error:
            notes.report(error)
            return _KnownSchedule(note.version, None, None)

    def _acts_at(self, known: _KnownSchedule) -> float | None:
        """When this scheduler next has something to do for a schedule."""
        if known.stored is not None and known.stored.pending:
            return min(self._clock(), known.stored.pending[-1].decided_at) + _TAKE_OVER_AFTER
        delay = 0.0 if self._is_leader() else _FOLLOWER_DELAY
        return None if known.fires_at is None else known.fires_at + delay

    def _due(self) -> list[str]:
        now = self._clock()
        times = {name: self._acts_at(known) for name, known in self._known.items()}
        return [name for name, at in times.items() if at is not None and at <= now]

    def _pause(self) -> float:
        now = self._clock()
        times = [at - now for known in self._known.values() if (at := self._acts_at(known)) is not None]
        return max(_MIN_PAUSE, min([_MAX_PAUSE, self._refresh_at() - self._elapsed(), *times]))

    async def _read(self, due: Sequence[str], fresh: Sequence[Note]) -> list[Note]:
        """The due notes as they are now; another scheduler may have fired them."""
        if fresh:
            return [note for note in fresh if note.name in set(due)]
        if len(due) >= _READ_ALL_FROM:
            return [note for note in await self._refresh() if note.name in set(due)]
        read = [await self._client.engine.read_note(name) for name in due]
        for name, note in zip(due, read, strict=True):
            if note is None:
                self._known.pop(name, None)
            else:
                self._known[name] = self._know(note)
        return [note for note in read if note is not None]

    async def _fire(self, due: Sequence[Note]) -> None:
        decided = [each for each in await in_parallel(self._decide, due) if each is not None]
        now = self._elapsed()
        ready = [each for each in decided if now - each.at <= _SUBMIT_WITHIN]
        if not ready:
            return
        try:
            await self._client.schedules.submit([(each.stored.schedule, each.stored.pending) for each in ready])
        except StorageError:
            raise  # a later check of any scheduler repeats it
        except QoError:  # one of the tasks is refused
            for each in ready:
                await self._submit_alone(each)
        await in_parallel(self._settle, ready)

    async def _submit_alone(self, decided: _Decided) -> None:
        schedule, fires = decided.stored.schedule, decided.stored.pending
        try:
            await self._client.schedules.submit([(schedule, fires)])
        except StorageError:
            raise
        except QoError as error:
            problem = str(error)
            log.error("schedule %s cannot submit its task: %s", schedule.name, problem)  # noqa: TRY400 - a user's mistake
            await change_schedule(
                self._client.engine,
                schedule.name,
                lambda note: None if note is None else refused(note, fires, problem),
            )

    async def _settle(self, decided: _Decided) -> None:
        """Record that the fires are submitted."""
        engine, fires = self._client.engine, decided.stored.pending
        after = delivered(decided.stored, fires)
        try:
            version = await self._write(decided.note, after)
        except Conflict:  # it was paused or changed in the meantime
            await change_schedule(
                engine, after.schedule.name, lambda note: None if note is None else delivered(note, fires)
            )
            return
        self._known[decided.note.name] = _KnownSchedule(version, after, next_fire_of(after, self._clock()))

    async def _decide(self, note: Note) -> _Decided | None:
        """Decide the due fire times of one schedule; None if there is nothing to submit here."""
        stored, now = self._know(note).stored, self._clock()
        if stored is None:
            return None
        if stored.pending:
            is_fresh = 0 <= now - stored.pending[-1].decided_at < _TAKE_OVER_AFTER
            return None if is_fresh else await self._write_decision(note, stored, taken_over(stored, now))
        after = decide(stored, now, await self._client.schedules.unfinished(stored))
        if after == stored:
            self._known[note.name] = _KnownSchedule(note.version, stored, next_fire_of(stored, now))
            return None
        return await self._write_decision(note, stored, after)

    async def _write_decision(self, note: Note, stored: ScheduleNote, after: ScheduleNote) -> _Decided | None:
        """Write what this scheduler is about to submit; None if another one was faster."""
        began = self._elapsed()
        try:
            version = await self._write(note, after)
        except Conflict:
            self._refresh_interval = min(self._refresh_interval, 1.0)
            return None
        self._known[note.name] = _KnownSchedule(version, after, next_fire_of(after, self._clock()))
        self._report(stored, after)
        written = Note(note.name, notes.encode_over(after, over=note), version)
        return _Decided(written, after, began) if after.pending else None

    async def _write(self, note: Note, after: ScheduleNote) -> str:
        data = notes.encode_over(after, over=note)
        return await self._client.engine.write_note(note.name, data, expected=note.version)

    def _report(self, before: ScheduleNote, after: ScheduleNote) -> None:
        for fire in after.recent:
            if fire not in before.recent:
                self._client.schedules.on_fire(fire)
                log.log(
                    logging.INFO if fire.outcome == "fired" else logging.WARNING,
                    "schedule %s: %s%s",
                    after.schedule.name,
                    fire.outcome,
                    f", {fire.reason}" if fire.reason else f" as task {fire.task_id}",
                )


def _is_set_back(stored: ScheduleNote | None, now: float) -> bool:
    """Whether the store's clock was set back, so that fire times have to be decided from now on."""
    return stored is not None and decided_until(stored, now) != stored.decided_until
