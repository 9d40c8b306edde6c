"""The state of one limit as last read by this process, and the compare-and-set writes that change its note."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from qo import notes
from qo.clock import Clock
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote, OutcomeUnknown, StorageError
from qo.fleet_limits.limit_state import Attempt, LimitState, attempts, over, reserve, without
from qo.fleet_limits.rules import TaskRule, state_note
from qo.fleet_limits.store_timings import StoreTimings
from qo.model import NEW, Task

_CHECK_INTERVAL = 1.0  # seconds after which the holders of a full group are looked up again
_MAX_ATTEMPTS = 50
_RETRY_PAUSE = 0.05


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
