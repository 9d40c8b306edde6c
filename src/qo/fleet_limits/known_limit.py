"""The note of a limit: its state as last read by this process, the compare-and-set writes that change it, how long they
take, and the repair that frees the slots of crashed workers.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from qo import notes
from qo.clock import Clock
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote, OutcomeUnknown, StorageError
from qo.fleet_limits.limit_state import MAX_HORIZON, Attempt, LimitState, attempts, over, reserve, tolerance, without
from qo.fleet_limits.rules import STATES, TaskRule, state_note
from qo.model import NEW, Limit, Task

_HORIZON = 0.25  # seconds: a claimed task waits at most this long for its start
_CALLS_AHEAD = 8  # on a slow store, a task waits for the duration of this many writes
_WRITES, _MAX_LEAD = 3, 3.0  # writes of an admission, and the maximum time for them in seconds
_MIN_REFRESH, _MAX_REFRESH = 0.5, 5.0  # seconds after which the note of a limit that blocks tasks is read again
_DURATION_FACTOR = 20  # refresh at most every 20 times the duration of a read: each read costs money on a bucket
_CHECK_INTERVAL = 1.0  # seconds after which the holders of a full group are looked up again
_MAX_ATTEMPTS = 50
_RETRY_PAUSE = 0.05
_MAX_IDLE = 60.0  # seconds after which past starts of an unused limit are removed


class StoreTimings:
    """How long the store takes to write and read the notes of limits, and the intervals that follow from it."""

    def __init__(self, *, starts_at_once: bool) -> None:
        self._starts_at_once = starts_at_once
        self.write_took = self.read_took = 0.0  # seconds of the last write and read

    def horizon(self, limit: Limit) -> float:
        """How many seconds in advance a start may be reserved."""
        if self._starts_at_once:
            return self.lead + tolerance(limit)
        return min(MAX_HORIZON, max(_HORIZON, _CALLS_AHEAD * self.write_took))

    @property
    def lead(self) -> float:
        """Seconds from now to the first start time. Tasks that start together must start after the write."""
        return self.time_to_write if self._starts_at_once else 0.0

    @property
    def time_to_write(self) -> float:
        """Seconds in which the notes of two limits are usually written."""
        return min(_MAX_LEAD, _WRITES * self.write_took)

    @property
    def refresh_interval(self) -> float:
        """Seconds after which the note of a limit that blocks tasks is read again."""
        return min(_MAX_REFRESH, max(_MIN_REFRESH, _DURATION_FACTOR * self.read_took))


class KnownLimit:
    def __init__(self, engine: Engine, scope: str, *, clock: Clock, store_time: Clock, timings: StoreTimings) -> None:
        self._engine, self.scope = engine, scope
        self._clock, self._now, self._timings = clock, store_time, timings
        self.state = LimitState(scope=scope)
        self._version: str | None = None  # None: read it first
        self.read_at = float("-inf")
        self._checked_at = float("-inf")
        self.ended: set[Attempt] = set()  # holders whose attempts ended in this process, and that are still in the note
        self.lock = asyncio.Lock()

    def current(self) -> LimitState:
        return without(self.state, self.ended)

    async def reserve(self, wanted: Sequence[tuple[Task, TaskRule]], earliest: Mapping[str, float]) -> dict[str, float]:
        """Store slots and starts for tasks, and remove the holders that have ended. Returns the starts, by id.

        Raises StorageError if it is not certain that they are stored.
        """
        async with self.lock:
            return await self._reserve(wanted, earliest)

    async def _reserve(
        self, wanted: Sequence[tuple[Task, TaskRule]], earliest: Mapping[str, float]
    ) -> dict[str, float]:
        asked = [(task, rule.group, rule.limit) for task, rule in wanted]
        groups = {task.id: rule.group for task, rule in wanted}
        for attempt in range(_MAX_ATTEMPTS):
            ended = set(self.ended)
            if self._version is None or (not asked and not ended <= set(attempts(self.state))):
                await self._read()
            before = without(self.state, ended)
            now, lead = self._now(), self._timings.lead
            first = {task.id: earliest.get(task.id, now + lead) for task, _, _ in asked}
            found = reserve(before, asked, now=now, horizon=self._timings.horizon, earliest=first)
            if found.refused and await self._repair({groups[id] for id in found.refused}):
                continue
            if not found.admitted and before == self.state:
                self.ended -= ended
                return {}
            try:
                await self._write(found.state)
            except Conflict:
                self._version = None
                if attempt:
                    await asyncio.sleep(_RETRY_PAUSE * attempt / _MAX_ATTEMPTS)
                continue
            except OutcomeUnknown:  # the write may have been applied; a holder that is read back keeps its slot
                self._version = None
                continue
            self.ended -= ended
            return found.admitted
        raise StorageError(f"the limit {self.scope} is being changed by other processes; try again")

    async def refresh(self, groups: Collection[str]) -> None:
        """Read the note, and look up the holders of these groups."""
        async with self.lock:
            await self._read()
            await self._repair(groups)

    async def _read(self) -> None:
        began = self._clock()
        note = await self._engine.read_note(state_note(self.scope))
        self.read_at = self._clock()
        self._timings.read_took = self.read_at - began
        if note is None:
            self.state, self._version = LimitState(scope=self.scope), NEW
            return
        try:
            self.state = notes.decode(note, LimitState)
        except DamagedNote as error:  # the holders are lost, so tasks that run now are not counted
            await notes.set_aside(self._engine, error)
            self.state = LimitState(scope=self.scope)
        self._version = note.version

    async def _write(self, state: LimitState) -> None:
        began = self._clock()
        expected = self._version or NEW
        data = msgspec.json.encode(replace(state, scope=self.scope))
        self._version = await self._engine.write_note(state_note(self.scope), data, expected=expected)
        self.state, self.read_at = state, self._clock()
        self._timings.write_took = self.read_at - began

    async def _repair(self, groups: Collection[str]) -> bool:
        """Look up the holders of full groups, at most once a second. True if some of their attempts have ended."""
        now = self._clock()
        if not groups or now - self._checked_at < _CHECK_INTERVAL:
            return False
        self._checked_at = now
        gone = await ended_holders(self._engine, attempts(self.state, groups), self._now())
        self.ended |= gone
        return bool(gone)


async def ended_holders(engine: Engine, holders: Sequence[Attempt], now: float) -> set[Attempt]:
    """The holders whose attempts have ended according to the store."""
    if not holders:
        return set()
    ids = [id for id, _ in holders]
    found: Mapping[str, Task | None] = dict(zip(ids, await engine.get_without_values(ids), strict=True))
    return over(found, holders, now)


async def repair_limits(engine: Engine, now: float) -> int:
    """Remove the holders whose attempts have ended, and past starts. Returns the number of removed holders.

    A worker that needs a slot does this for one limit; a monitor does it for all.

    Raises StorageError.
    """
    freed = 0
    for note in await engine.notes(STATES):
        try:
            state = notes.decode(note, LimitState)
        except DamagedNote as error:
            notes.report(error)
            continue
        gone = await ended_holders(engine, attempts(state), now)
        is_stale = bool(state.next_at) and max(state.next_at.values()) < now - _MAX_IDLE  # no worker will remove them
        if not gone and not is_stale:
            continue
        state = replace(state, next_at={}) if is_stale else state
        try:
            await engine.write_note(note.name, msgspec.json.encode(without(state, gone)), expected=note.version)
        except Conflict:  # a worker is changing the note and will remove them too
            continue
        freed += len(gone)
    return freed
