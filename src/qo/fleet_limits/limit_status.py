"""The fleet limits for display: their numbers, the holders of their slots, and the waiting tasks.

The command line, the REST API and the dashboard show what `limit_statuses` returns.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from heapq import nsmallest
from typing import TypeAlias

from msgspec import Struct

from qo import notes
from qo.clock import boot_clock
from qo.engine import Engine
from qo.errors import DamagedNote
from qo.fleet_limits.limit_state import LimitState, next_start
from qo.fleet_limits.rules import (
    KEY,
    NO_GROUP,
    QUEUE,
    STATES,
    TYPE,
    DeclaredLimits,
    LimitRules,
    read_declared,
    state_note,
    type_of_scope,
)
from qo.model import Counts, Filter, Limit, PendingKind, Status, Task, plural, shown_group

MAX_READ = 1000  # waiting tasks
_AGE_FACTOR, _MAX_AGE = 20.0, 60.0  # a read is reused for this many times its duration, at most a minute


class WaitingGroups(Struct, frozen=True):
    """How many due tasks of each group wait.

    The counts of a store know no groups, so the tasks are read: all, or the newest `MAX_READ` of a longer queue.
    """

    numbers: Mapping[tuple[str, str], int] = {}  # by type and group
    is_complete: bool = True  # False: there are more tasks, and all numbers are lower bounds
    ungrouped: frozenset[str] = frozenset()  # types with tasks whose group is not stored; a refused start stores it


class WaitingGroupsReader:
    """Concurrent callers share one read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._types: frozenset[str] | None = None
        self._known = WaitingGroups()
        self._known_until = float("-inf")

    async def read(self, types: Collection[str] = ()) -> WaitingGroups:
        """Of these types, or of all. Raises StorageError."""
        wanted = frozenset(types)
        async with self._lock:
            began = boot_clock()
            if wanted != self._types or began >= self._known_until:
                self._known, self._types = await self._count(wanted), wanted
                now = boot_clock()
                self._known_until = now + min(_MAX_AGE, _AGE_FACTOR * (now - began))
            return self._known

    async def _count(self, types: Collection[str]) -> WaitingGroups:
        due = Filter(types=tuple(sorted(types)), statuses=(Status.PENDING,), pending=(PendingKind.READY,))
        tasks = await self._engine.find_without_values(due, limit=MAX_READ)
        numbers = Counter((task.type, task.group) for task in tasks if task.group is not None)
        ungrouped = frozenset(task.type for task in tasks if task.group is None)
        return WaitingGroups(dict(numbers), len(tasks) < MAX_READ, ungrouped)


MAX_GROUPS = 50  # of one limit
MAX_HOLDERS = 100  # of one group
_TypeAndGroup: TypeAlias = tuple[str, str]


class SlotHolder(Struct, frozen=True, kw_only=True):
    task_id: str
    worker_id: str
    since: float


class GroupStatus(Struct, frozen=True, kw_only=True):
    """The use of a limit by one group. A limit without a key has one group, with an empty name."""

    group: str
    type: str | None  # of its tasks; None for a queue
    running: int
    concurrency: int  # its slots; 0: no limit
    rate: float  # its starts within `per` seconds; 0: no limit
    per: float
    next_at: float | None  # the first start time that the rate allows; None: now
    waiting: int  # due tasks; of a limit without a key: all pending tasks
    waits_for: tuple[str, ...]  # such as: a slot of customer_id=42 (5 of 5 running); empty if a task may start now
    holders: tuple[SlotHolder, ...]  # at most MAX_HOLDERS

    @property
    def name(self) -> str:
        return shown_group(self.group)


class LimitStatus(Struct, frozen=True, kw_only=True):
    scope: str
    concurrency: int
    rate: float
    per: float
    key: str | None
    is_live: bool  # set in the store; otherwise declared by code
    waiting: int | None  # pending tasks of its type or queue; None for a limit of one value
    groups: tuple[GroupStatus, ...]  # those with most waiting tasks, at most MAX_GROUPS
    group_count: int  # all groups with running or waiting tasks, or a start to come
    is_exact: bool  # False: the numbers of waiting tasks of groups are lower bounds, and groups may be missing

    @property
    def numbers(self) -> str:
        """Such as: at most 5 at a time and 100 starts in 60 s for each customer_id."""
        text = describe_limit(Limit(concurrency=self.concurrency, rate=self.rate, per=self.per))
        return f"{text} for each {self.key}" if self.key and (self.concurrency or self.rate) else text


def describe_limit(limit: Limit) -> str:
    """Such as: at most 5 at a time and 100 starts in 60 s."""
    parts = [f"{limit.concurrency} at a time"] if limit.concurrency else []
    if limit.rate:
        parts.append(_rate(limit))
    return f"at most {' and '.join(parts)}" if parts else "no limit"


async def limit_statuses(
    engine: Engine, controls: notes.Controls, waiting: WaitingGroupsReader | None = None
) -> list[LimitStatus]:
    """All fleet limits, those of types first. Raises StorageError.

    `waiting` reads the groups of waiting tasks; a server keeps one, so that it does not read them for each request.
    """
    declared = await read_declared(engine)
    limits = {TYPE + type_: limit for type_, limit in declared.types.items()} | controls.limits
    if not limits:
        return []
    rules = LimitRules(declared.types, controls.limits)
    keyed = [type_ for type_, limit in rules.types.items() if limit.key is not None]
    has_values = any(scope.startswith(KEY) for scope in limits)
    groups = WaitingGroups()
    if keyed or has_values:
        groups = await (waiting or WaitingGroupsReader(engine)).read(() if has_values else keyed)
    snapshot = _Snapshot(await _states(engine), rules, await engine.count(), groups, await engine.now())
    order = (TYPE, QUEUE, KEY)
    scopes = sorted(limits, key=lambda scope: (order.index(scope.partition(":")[0] + ":"), scope))
    return [snapshot.status(scope, limits[scope], is_live=scope in controls.limits) for scope in scopes]


class _Snapshot:
    """What was read of the store, and the statuses that follow from it. `states` has the scopes of types and queues."""

    def __init__(
        self, states: Mapping[str, LimitState], rules: LimitRules, counts: Counts, waiting: WaitingGroups, now: float
    ) -> None:
        self._states, self._rules, self._counts, self._waiting, self._now = states, rules, counts, waiting, now

    def status(self, scope: str, limit: Limit, *, is_live: bool) -> LimitStatus:
        kind, _, name = scope.partition(":")
        key = self._rules.key(name) if kind == "type" else None
        waiting, is_exact, group_count = self._waiting, True, 1
        if kind == "key" or key is not None:
            used = self._types_with(name) if kind == "key" else self._groups_of(scope, name)
            group_count = len(used)
            groups = [self._group(type, group) for type, group in self._busiest(used)]
            # A task of any type may have the argument of a limit for one value.
            is_exact = waiting.is_complete and not (waiting.ungrouped if kind == "key" else name in waiting.ungrouped)
        else:
            groups = [self._whole(scope, name if kind == "type" else None, limit)]
        return LimitStatus(
            scope=scope,
            concurrency=limit.concurrency,
            rate=limit.rate,
            per=limit.per,
            key=key,
            is_live=is_live,
            waiting=None if kind == "key" else self._pending(scope),
            groups=tuple(groups),
            group_count=group_count,
            is_exact=is_exact,
        )

    def _types_with(self, group: str) -> set[_TypeAndGroup]:
        """The types of which tasks of a group run or wait, or have used a rate."""
        found = {pair for pair in self._waiting.numbers if pair[1] == group}
        for scope, state in self._states.items():
            if (type_ := type_of_scope(scope)) is not None and (group in state.holders or group in state.next_at):
                found.add((type_, group))
        return found

    def _groups_of(self, scope: str, type: str) -> set[_TypeAndGroup]:
        state = self._states.get(scope, LimitState())
        to_come = (group for group, at in state.next_at.items() if at > self._now)
        return {
            *((type, group) for group in (*state.holders, *to_come)),
            *(pair for pair in self._waiting.numbers if pair[0] == type),
        }

    def _busiest(self, used: Iterable[_TypeAndGroup]) -> list[_TypeAndGroup]:
        """Those with most waiting tasks. Only these are described: there may be 10,000 groups."""

        def rank(pair: _TypeAndGroup) -> tuple[int, int, str, str]:
            type_, group = pair
            state = self._states.get(TYPE + type_)
            running = 0 if state is None else len(state.holders.get(group, ()))
            return -self._waiting.numbers.get(pair, 0), -running, group, type_

        return nsmallest(MAX_GROUPS, used, key=rank)

    def _group(self, type: str, group: str) -> GroupStatus:
        rules = self._rules.for_group(type, group)
        limit = Limit(
            concurrency=max((rule.limit.concurrency for rule in rules), default=0),
            rate=max((rule.limit.rate for rule in rules), default=0.0),
            per=max((rule.limit.per for rule in rules), default=1.0),
        )
        waiting = self._waiting.numbers.get((type, group), 0)
        return self._use(TYPE + type, type, group, limit, waiting=waiting)

    def _whole(self, scope: str, type: str | None, limit: Limit) -> GroupStatus:
        return self._use(scope, type, NO_GROUP, limit, waiting=self._pending(scope))

    def _use(self, scope: str, type: str | None, group: str, limit: Limit, *, waiting: int) -> GroupStatus:
        state = self._states.get(scope, LimitState())
        holders = state.holders.get(group, {})
        name = shown_group(group) or scope.replace(":", " ", 1)
        next_at = next_start(state.next_at, group, limit, self._now) if limit.rate else self._now
        return GroupStatus(
            group=group,
            type=type,
            running=len(holders),
            concurrency=limit.concurrency,
            rate=limit.rate,
            per=limit.per,
            next_at=next_at if next_at > self._now else None,
            waiting=waiting,
            waits_for=tuple(_waits_for(name, len(holders), limit, is_rate_used=next_at > self._now)),
            holders=tuple(
                SlotHolder(task_id=task_id, worker_id=holder.worker_id, since=holder.since)
                for task_id, holder in list(holders.items())[:MAX_HOLDERS]
            ),
        )

    def _pending(self, scope: str) -> int:
        return sum(
            number
            for lane, number in self._counts.items()
            if lane.status is Status.PENDING and scope in (TYPE + lane.type, QUEUE + lane.queue)
        )


async def _states(engine: Engine) -> dict[str, LimitState]:
    """By the scope of the type or queue: the slots and the starts of a type may be in different notes."""
    states: dict[str, LimitState] = {}
    for note in await engine.notes(STATES):
        try:
            state = notes.decode(note, LimitState)
        except DamagedNote as error:
            notes.report(error)
        else:
            type_ = type_of_scope(state.scope)
            scope = state.scope if type_ is None else TYPE + type_
            before = states.get(scope, LimitState(scope=scope))
            holders, next_at = before.holders | state.holders, before.next_at | state.next_at
            states[scope] = LimitState(scope=scope, holders=holders, next_at=next_at)
    return states


def _waits_for(name: str, running: int, limit: Limit, *, is_rate_used: bool) -> list[str]:
    found = []
    if limit.concurrency and running >= limit.concurrency:
        found.append(f"a slot of {name} ({running} of {limit.concurrency} running)")
    if limit.rate and is_rate_used:
        found.append(f"the rate limit of {name} (at most {_rate(limit)})")
    return found


def _rate(limit: Limit) -> str:
    return f"{plural(int(limit.rate), 'start')} in {limit.per:g} s"


async def reasons_to_wait(engine: Engine, task: Task, controls: notes.Controls, now: float) -> list[str]:
    """The fleet limits that keep a task from starting, such as: waiting for a slot of customer_id=42 (5 of 5)."""
    declared: DeclaredLimits = await read_declared(engine)
    found = []
    for rule in LimitRules(declared.types, controls.limits).of(task):
        note = await engine.read_note(state_note(rule.scope))
        if note is None:
            continue
        try:
            state = notes.decode(note, LimitState)
        except DamagedNote:
            continue
        name = shown_group(rule.group) if rule.group != NO_GROUP else rule.scope.replace(":", " ")
        running = len(state.holders.get(rule.group, {}))
        is_used = bool(rule.limit.rate) and next_start(state.next_at, rule.group, rule.limit, now) > now
        found += [f"waiting for {each}" for each in _waits_for(name, running, rule.limit, is_rate_used=is_used)]
    return found
