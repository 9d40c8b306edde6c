"""Applies the limits of the fleet for one process: narrows its claims, and admits claimed tasks before they start.

Each limit has one note, which is changed by compare-and-set: one write for a batch of tasks, which also removes the
holders of this process that have ended. A claimed task that is not admitted goes back to the store.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo import notes
from qo.clock import Clock
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote, OutcomeUnknown, StorageError
from qo.fleet_limits.fair_turns import FairTurns
from qo.fleet_limits.limit_state import (
    MAX_HORIZON,
    Attempt,
    LimitState,
    attempts,
    next_start,
    over,
    reserve,
    slots_left,
    spacing,
    starts_left,
    tolerance,
    without,
)
from qo.fleet_limits.rules import NO_GROUP, QUEUE, TYPE, LimitRules, TaskRule, state_note
from qo.ids import random_fraction
from qo.model import MAX_NAMES, NEW, ClaimRequest, Limit, Task, group_key

log = logging.getLogger("qo.limits")

_HORIZON = 0.25  # seconds: a claimed task waits at most this long for its start
_CALLS_AHEAD = 8  # on a slow store, a task waits for as long as this many writes take
_WRITES, _MAX_LEAD = 3, 3.0  # writes of an admission, and seconds that they take at most
_MIN_REFRESH, _MAX_REFRESH = 0.5, 5.0  # seconds after which the note of a limit that blocks tasks is read again
_DURATION_FACTOR = 20  # and at least this many times the duration of such a read: each costs money on a bucket
_CHECK_INTERVAL = 1.0  # seconds after which the holders of a full group are looked up again
_RELEASE_DELAY = 0.02  # seconds; the next claim usually takes over the slots that have become free
_MAX_ATTEMPTS = 50
_RETRY_PAUSE = 0.05
_REFUSED_DELAY = 1.0  # seconds until a task is due again whose group a claim could not leave out


class Admission(Struct, frozen=True, kw_only=True):
    """A task that may start, between two instants of the store's clock."""

    start_at: float = float("-inf")
    start_by: float = float("inf")

    @property
    def is_timed(self) -> bool:
        """Whether a rate allows the start only at its instant."""
        return self.start_by < float("inf")


class _KnownLimit:
    """What this process knows about one limit."""

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.state = LimitState(scope=scope)
        self.version: str | None = None  # None: read it first
        self.read_at = float("-inf")
        self.checked_at = float("-inf")
        self.ended: set[Attempt] = set()  # holders that this process has ended and not removed yet
        self.lock = asyncio.Lock()

    def current(self) -> LimitState:
        return without(self.state, self.ended)


class LimitGate:
    """With `starts_at_once`, all admitted tasks of a batch start together, within the tolerance of their instants."""

    def __init__(self, engine: Engine, *, clock: Clock, store_time: Clock, starts_at_once: bool = False) -> None:
        self._engine, self._clock, self._now, self._starts_at_once = engine, clock, store_time, starts_at_once
        self._rules = LimitRules({}, {})
        self._limits: dict[str, _KnownLimit] = {}
        self._release: asyncio.Task[None] | None = None
        self._write_took = self._read_took = 0.0  # seconds of the last write and read
        self._is_cut = False  # more groups are full than a claim can leave out
        self._refused: dict[str, None] = {}  # groups of which tasks were refused, the last ones last
        self._blocked_until = float("inf")  # when the last request should be built again
        self.turns = FairTurns(clock)
        self.on_change: Callable[[], None] = lambda: None

    def set_rules(self, rules: LimitRules, fair_types: Collection[str] = ()) -> None:
        self._rules = rules
        self.turns.types = frozenset(fair_types)

    @property
    def is_idle(self) -> bool:
        """Whether no limit is in force."""
        return self._rules.is_empty

    # --- claims

    def narrow(self, request: ClaimRequest) -> ClaimRequest | None:
        """The request without what is full; None if nothing is left."""
        self._blocked_until = float("inf")
        per_group, groups = self.turns.limits(request.limit)
        if self._rules.is_empty:
            return replace(request, takes_groups=True, per_group_limits=per_group, group_limits=groups)
        per_type = dict(request.per_type_limits)
        limit = request.limit
        for type_, rule in self._rules.types.items():
            if rule.key is None:
                self._lower(per_type, type_, self._left(self._known(TYPE + type_).current(), NO_GROUP, rule))
            else:
                self._lower(per_group, type_, self._left(LimitState(), NO_GROUP, rule))
        for known in self._limits.values():
            type_ = known.scope.removeprefix(TYPE)
            if known.scope.startswith(TYPE) and self._rules.is_keyed(type_):
                self._limit_groups(groups, known.current(), type_)
        self._is_cut = len(groups) > MAX_NAMES
        for queue, rule in self._rules.queues.items():
            left = self._left(self._known(QUEUE + queue).current(), NO_GROUP, rule)
            if left and (not request.queues or queue in request.queues):
                limit = min(limit, left)  # a claim has no limits for queues
        full_queues = self.full_queues
        types = tuple(type_ for type_ in request.types if per_type.get(type_, 1) > 0)
        queues = tuple(queue for queue in request.queues if queue not in full_queues)
        if (request.types and not types) or (request.queues and not queues):
            return None
        return replace(
            request,
            types=types,
            queues=queues,
            limit=limit,
            per_type_limits={type_: most for type_, most in per_type.items() if type_ in types or not types},
            takes_groups=True,
            per_group_limits=per_group,
            group_limits=_most_restrictive(groups, self._refused),
        )

    @property
    def full_queues(self) -> set[str]:
        """Queues of which no task may start now. A request for all queues cannot leave them out."""
        return {
            queue
            for queue, rule in self._rules.queues.items()
            if self._left(self._known(QUEUE + queue).current(), NO_GROUP, rule) == 0
        }

    @property
    def is_blocking(self) -> bool:
        """Whether the last request left tasks out that may start later."""
        return self._blocked_until < float("inf")

    def _left(self, state: LimitState, group: str, rule: Limit) -> int | None:
        """How many tasks may start; None if there is no limit. Remembers when that changes."""
        now, horizon = self._now(), self._horizon(rule)
        slots = slots_left(state, group, rule)
        starts = starts_left(state, group, rule, now=now + self._lead, horizon=horizon - self._lead)
        if slots == 0:
            self._wake_after(self._refresh_interval)
        if starts == 0:
            self._wake_after(max(0.01, next_start(state.next_at, group, rule, now) - now - horizon / 2))
        return min((left for left in (slots, starts) if left is not None), default=None)

    def _limit_groups(self, groups: dict[str, int], state: LimitState, type_: str) -> None:
        for group in {*state.holders, *state.next_at} - {NO_GROUP}:
            rule = self._rules.for_group(type_, group)
            if rule is not None:
                self._lower(groups, group_key(type_, group), self._left(state, group, rule))

    @staticmethod
    def _lower(limits: dict[str, int], name: str, most: int | None) -> None:
        if most is not None:
            limits[name] = min(most, limits.get(name, most))

    def _wake_after(self, seconds: float) -> None:
        self._blocked_until = min(self._blocked_until, self._clock() + seconds)

    def next_request_in(self, longest: float) -> float:
        """Seconds until another request may be narrowed less; at most `longest`."""
        return max(0.005, min(longest, self._blocked_until - self._clock()))

    def _horizon(self, limit: Limit) -> float:
        """Seconds before its instant at which a start may be reserved."""
        if self._starts_at_once:
            return self._lead + tolerance(limit)
        return min(MAX_HORIZON, max(_HORIZON, _CALLS_AHEAD * self._write_took))

    @property
    def _lead(self) -> float:
        """Seconds before the first instant. Starts that must not wait for each other come after the write."""
        return self._time_to_write if self._starts_at_once else 0.0

    @property
    def _time_to_write(self) -> float:
        """Seconds in which the notes of two limits are usually written."""
        return min(_MAX_LEAD, _WRITES * self._write_took)

    @property
    def _refresh_interval(self) -> float:
        return min(_MAX_REFRESH, max(_MIN_REFRESH, _DURATION_FACTOR * self._read_took))

    async def refresh(self) -> None:
        """Read again the notes of limits that block tasks, and remove the holders that others have left. Bounded."""
        if self._rules.is_empty or self._blocked_until == float("inf"):
            return
        for known in list(self._limits.values()):
            full = self._full_groups(known)
            if full and self._clock() - known.read_at >= self._refresh_interval:
                async with known.lock:
                    await self._read(known)
                    await self._repair(known, self._full_groups(known))

    def _full_groups(self, known: _KnownLimit) -> list[str]:
        found, state = [], known.current()
        for group in state.holders:
            rule = self._rule_of(known.scope, group)
            if rule is not None and slots_left(state, group, rule) == 0:
                found.append(group)
        return found

    def _rule_of(self, scope: str, group: str) -> Limit | None:
        if scope.startswith(TYPE):
            return self._rules.for_group(scope.removeprefix(TYPE), group)
        return self._rules.queues.get(scope.removeprefix(QUEUE))

    # --- admission

    async def admit(self, tasks: Sequence[Task]) -> dict[str, Admission]:
        """The tasks that may start, by id. Their slots are stored. Raises StorageError if that is not certain."""
        admitted = {task.id: Admission() for task in tasks}
        if self._rules.is_empty:
            return admitted
        by_scope: dict[str, list[tuple[Task, TaskRule]]] = {}
        for task in tasks:
            for rule in self._rules.of(task):
                by_scope.setdefault(rule.scope, []).append((task, rule))
        earliest = self._earliest(by_scope) if len(by_scope) > 1 else {}
        for scope in sorted(by_scope, key=lambda scope: (-_slowness(by_scope[scope]), scope)):
            wanted = [(task, rule) for task, rule in by_scope[scope] if task.id in admitted]
            starts = await self._reserve(self._known(scope), wanted, earliest) if wanted else {}
            for task, rule in wanted:
                admission = _within(admitted.pop(task.id), rule.limit, starts.get(task.id))
                if admission is None:
                    self._refuse(task)
                else:
                    admitted[task.id] = admission
                    earliest[task.id] = max(admission.start_at, earliest.get(task.id, admission.start_at))
        return admitted

    def _earliest(self, by_scope: Mapping[str, Sequence[tuple[Task, TaskRule]]]) -> dict[str, float]:
        """The first instants that all limits of a task may leave, so that it gets nearly the same one of each."""
        now, found = self._now() + self._time_to_write, dict[str, float]()
        for scope, wanted in by_scope.items():
            next_at = self._known(scope).state.next_at
            for task, rule in wanted:
                if rule.limit.rate:
                    at = next_start(next_at, rule.group, rule.limit, now)
                    found[task.id] = max(at, found.get(task.id, at))
        return found

    def _refuse(self, task: Task) -> None:
        """Free the slots that a task got of earlier limits, and remember its group."""
        self.ended([task])
        if task.group is not None:
            key = group_key(task.type, task.group)
            self._refused.pop(key, None)
            self._refused[key] = None
            if len(self._refused) > MAX_NAMES:
                del self._refused[next(iter(self._refused))]

    def refusal_delay(self, task: Task) -> float | None:
        """Seconds until a refused task is due again; None if the next claim leaves it out, so it keeps its place."""
        if self._rules.is_keyed(task.type) and (task.group is None or self._is_cut):
            return _REFUSED_DELAY * (0.5 + random_fraction())
        return None

    def seconds_until(self, instant: float) -> float:
        """Seconds until an instant of the store's clock; negative if it has passed."""
        return instant - self._now()

    async def _reserve(
        self, known: _KnownLimit, wanted: Sequence[tuple[Task, TaskRule]], earliest: Mapping[str, float]
    ) -> dict[str, float]:
        async with known.lock:
            return await self._reserve_locked(known, wanted, earliest)

    async def _reserve_locked(
        self, known: _KnownLimit, wanted: Sequence[tuple[Task, TaskRule]], earliest: Mapping[str, float]
    ) -> dict[str, float]:
        asked = [(task, rule.group, rule.limit) for task, rule in wanted]
        groups = {task.id: rule.group for task, rule in wanted}
        for attempt in range(_MAX_ATTEMPTS):
            ended = set(known.ended)
            if known.version is None or (not asked and not ended <= set(attempts(known.state))):
                await self._read(known)
            before = without(known.state, ended)
            now, lead = self._now(), self._lead
            first = {task.id: earliest.get(task.id, now + lead) for task, _, _ in asked}
            found = reserve(before, asked, now=now, horizon=self._horizon, earliest=first)
            if found.refused and await self._repair(known, {groups[id] for id in found.refused}):
                continue
            if not found.admitted and before == known.state:
                known.ended -= ended
                return {}
            try:
                await self._write(known, found.state)
            except Conflict:
                known.version = None
                if attempt:
                    await asyncio.sleep(_RETRY_PAUSE * attempt / _MAX_ATTEMPTS)
                continue
            except OutcomeUnknown:  # it may be written: a holder that is read back keeps its slot
                known.version = None
                continue
            known.ended -= ended
            return found.admitted
        raise StorageError(f"the limit {known.scope} is being changed by other processes; try again")

    async def _read(self, known: _KnownLimit) -> None:
        began = self._clock()
        note = await self._engine.read_note(state_note(known.scope))
        known.read_at = self._clock()
        self._read_took = known.read_at - began
        if note is None:
            known.state, known.version = LimitState(scope=known.scope), NEW
            return
        try:
            known.state = notes.decode(note, LimitState)
        except DamagedNote as error:  # the holders are lost: those that run are not counted
            await notes.set_aside(self._engine, error)
            known.state = LimitState(scope=known.scope)
        known.version = note.version

    async def _write(self, known: _KnownLimit, state: LimitState) -> None:
        began = self._clock()
        expected = known.version or NEW
        data = msgspec.json.encode(replace(state, scope=known.scope))
        known.version = await self._engine.write_note(state_note(known.scope), data, expected=expected)
        known.state, known.read_at = state, self._clock()
        self._write_took = known.read_at - began

    async def _repair(self, known: _KnownLimit, groups: Collection[str]) -> bool:
        """Look up the holders of full groups, at most once a second. True if some of their attempts are over."""
        now = self._clock()
        if not groups or now - known.checked_at < _CHECK_INTERVAL:
            return False
        known.checked_at = now
        gone = await ended_holders(self._engine, attempts(known.state, groups), self._now())
        known.ended |= gone
        return bool(gone)

    # --- ends

    def ended(self, tasks: Iterable[Task]) -> None:
        """Free the slots of tasks whose outcome is stored, or that are handed back and not running."""
        if self._rules.is_empty:
            return
        is_changed = False
        for task in tasks:
            for rule in self._rules.of(task):
                if rule.limit.concurrency:
                    is_changed |= self._end(rule.scope, task)
        if is_changed and self._release is None:
            self._release = asyncio.get_running_loop().create_task(self._release_later())

    def _end(self, scope: str, task: Task) -> bool:
        known = self._known(scope)
        known.ended.add((task.id, task.attempt))
        return True

    async def _release_later(self) -> None:
        try:
            while any(known.ended for known in self._limits.values()):
                await asyncio.sleep(_RELEASE_DELAY)
                await self.release()
        finally:
            self._release = None

    async def release(self) -> None:
        """Write the ends that no admission has written yet."""
        for known in list(self._limits.values()):
            if known.ended and not known.lock.locked():
                try:
                    await self._reserve(known, [], {})
                except StorageError as error:
                    log.warning("cannot free slots of %s: %s", known.scope, error)
                    await asyncio.sleep(_MIN_REFRESH)
        self.on_change()

    async def close(self) -> None:
        if self._release is not None:
            self._release.cancel()
            self._release = None
        await self.release()

    def _known(self, scope: str) -> _KnownLimit:
        if scope not in self._limits:
            self._limits[scope] = _KnownLimit(scope)
        return self._limits[scope]


async def ended_holders(engine: Engine, holders: Sequence[Attempt], now: float) -> set[Attempt]:
    """Those of the holders whose attempts are over according to the store."""
    if not holders:
        return set()
    ids = [id for id, _ in holders]
    found: Mapping[str, Task | None] = dict(zip(ids, await engine.get_without_values(ids), strict=True))
    return over(found, holders, now)


def _slowness(wanted: Iterable[tuple[Task, TaskRule]]) -> float:
    """Seconds between two starts; infinite without a rate, so that no instant is wasted on a task without a slot."""
    return max((spacing(rule.limit) for _, rule in wanted if rule.limit.rate), default=float("inf"))


def _within(admission: Admission, limit: Limit, start: float | None) -> Admission | None:
    """The admission under one more limit, which gave `start`; None if the two leave no time."""
    if start is None or not limit.rate:
        return None if start is None else admission
    start_at, start_by = max(admission.start_at, start), min(admission.start_by, start + tolerance(limit))
    return Admission(start_at=start_at, start_by=start_by) if start_at <= start_by else None


def _most_restrictive(groups: Mapping[str, int], refused: Collection[str]) -> dict[str, int]:
    """As many limits of groups as a claim may have: the lowest first, and of these the ones that claims came upon."""
    if len(groups) <= MAX_NAMES:
        return dict(groups)
    return dict(sorted(groups.items(), key=lambda entry: (entry[1], entry[0] not in refused))[:MAX_NAMES])
