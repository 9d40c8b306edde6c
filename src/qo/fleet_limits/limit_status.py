"""The limits of the fleet as people see them: their numbers, who holds their slots, and what waits."""

from msgspec import Struct

from qo import notes
from qo.engine import Engine
from qo.errors import DamagedNote
from qo.fleet_limits.declared import read_declared
from qo.fleet_limits.limit_state import LimitState, next_start
from qo.fleet_limits.rules import (
    KEY,
    NO_GROUP,
    QUEUE,
    STATES,
    TYPE,
    DeclaredLimits,
    LimitRules,
    state_note,
    type_of_scope,
)
from qo.model import Counts, Limit, Status, Task, plural, shown_group

MAX_SHOWN = 20  # groups of one limit


class SlotHolder(Struct, frozen=True, kw_only=True):
    task_id: str
    worker_id: str
    since: float


class GroupStatus(Struct, frozen=True, kw_only=True):
    """The use of a limit by one group; of a limit without a key there is one, with an empty name."""

    group: str
    running: int
    next_at: float | None = None  # the first instant that the rate leaves for a start
    holders: tuple[SlotHolder, ...] = ()


class LimitStatus(Struct, frozen=True, kw_only=True):
    scope: str
    concurrency: int
    rate: float
    per: float
    key: str | None
    is_live: bool  # set in the store; otherwise declared by code
    waiting: int | None  # pending tasks of its type or queue
    groups: tuple[GroupStatus, ...]  # those that use most, at most MAX_SHOWN

    @property
    def numbers(self) -> str:
        """Such as: at most 5 at once and 100 starts in 60 s for each customer_id."""
        parts = []
        if self.concurrency:
            parts.append(f"{self.concurrency} at once")
        if self.rate:
            parts.append(f"{plural(int(self.rate), 'start')} in {self.per:g} s")
        each = f" for each {self.key}" if self.key else ""
        return f"at most {' and '.join(parts)}{each}" if parts else "no limit"


async def limit_statuses(engine: Engine, controls: notes.Controls, counts: Counts | None = None) -> list[LimitStatus]:
    """All limits of the fleet, those of types first. Raises StorageError."""
    declared = await read_declared(engine)
    states = await _states(engine) if declared.types or controls.limits else {}
    found = [_status(scope, limit, states, counts, is_live=True) for scope, limit in controls.limits.items()]
    for type_, limit in declared.types.items():
        if TYPE + type_ not in controls.limits:
            found.append(_status(TYPE + type_, limit, states, counts, is_live=False))
    keys = {type_: limit.key for type_, limit in declared.types.items()}
    order = (TYPE, QUEUE, KEY)
    found = [_with_key(status, keys) for status in found]
    return sorted(found, key=lambda status: (order.index(status.scope.partition(":")[0] + ":"), status.scope))


def _with_key(status: LimitStatus, keys: dict[str, str | None]) -> LimitStatus:
    key = keys.get(status.scope.removeprefix(TYPE)) if status.scope.startswith(TYPE) else None
    return status if key == status.key else _replaced(status, key)


def _replaced(status: LimitStatus, key: str | None) -> LimitStatus:
    return LimitStatus(**{name: getattr(status, name) for name in status.__struct_fields__} | {"key": key})


async def _states(engine: Engine) -> dict[str, LimitState]:
    states: dict[str, LimitState] = {}
    for note in await engine.notes(STATES):
        try:
            state = notes.decode(note, LimitState)
        except DamagedNote as error:
            notes.report(error)
        else:
            type_ = type_of_scope(state.scope)  # the slots and the starts of a type may be in different notes
            scope = state.scope if type_ is None else TYPE + type_
            before = states.get(scope, LimitState(scope=scope))
            holders, next_at = before.holders | state.holders, before.next_at | state.next_at
            states[scope] = LimitState(scope=scope, holders=holders, next_at=next_at)
    return states


def _status(
    scope: str, limit: Limit, states: dict[str, LimitState], counts: Counts | None, *, is_live: bool
) -> LimitStatus:
    if scope.startswith(KEY):
        groups = [group for state in states.values() for group in _groups(state) if group.group == scope[len(KEY) :]]
    else:
        groups = _groups(states.get(scope, LimitState()))
    groups.sort(key=lambda group: (-group.running, group.group))
    return LimitStatus(
        scope=scope,
        concurrency=limit.concurrency,
        rate=limit.rate,
        per=limit.per,
        key=limit.key,
        is_live=is_live,
        waiting=None if counts is None or scope.startswith(KEY) else _waiting(scope, counts),
        groups=tuple(groups[:MAX_SHOWN]),
    )


def _waiting(scope: str, counts: Counts) -> int:
    return sum(
        number
        for lane, number in counts.items()
        if lane.status is Status.PENDING and scope in (TYPE + lane.type, QUEUE + lane.queue)
    )


def _groups(state: LimitState) -> list[GroupStatus]:
    return [
        GroupStatus(
            group=group,
            running=len(holders := state.holders.get(group, {})),
            next_at=state.next_at.get(group),
            holders=tuple(
                SlotHolder(task_id=task_id, worker_id=holder.worker_id, since=holder.since)
                for task_id, holder in holders.items()
            ),
        )
        for group in sorted({*state.holders, *state.next_at})
    ]


async def reasons_to_wait(engine: Engine, task: Task, controls: notes.Controls, now: float) -> list[str]:
    """Which limits of the fleet keep a task from starting, such as: waiting for a slot of customer_id=42 (5 of 5)."""
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
        if rule.limit.concurrency and running >= rule.limit.concurrency:
            found.append(f"it waits for a slot of {name} ({running} of {rule.limit.concurrency} running)")
        if rule.limit.rate and next_start(state.next_at, rule.group, rule.limit, now) > now:
            rate = f"{plural(int(rule.limit.rate), 'start')} in {rule.limit.per:g} s"
            found.append(f"it waits for the rate of {name} (at most {rate})")
    return found
