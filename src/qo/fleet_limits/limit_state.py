"""The state of one limit, and the decisions about slots and starts. Pure.

Slots: a holder is an attempt of a task. A handler starts only after its attempt is stored as a holder, and at most as
many holders are stored as the limit allows. A holder is removed when its attempt has ended.

Rates: the state contains the time of the next start. Each task gets its own start time, at least `spacing` after the
previous one, and starts between this time and `tolerance` later, or not at all. So the starts in any window of `per`
seconds have start times in an interval of `per + tolerance` seconds, which contains at most `rate` of them, because
`spacing` is `(per + tolerance) / rate`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from qo.model import Limit, Status, Task

MAX_TOLERANCE = 1.0  # seconds by which a start may be late
_MIN_TOLERANCE = 0.04  # seconds; timers and threads of a busy process are no more accurate
_TOLERANCE_SHARE = 0.04  # of `per`; the effective rate is lower by this share
MAX_HORIZON = 5.0  # seconds; start times are reserved at most this long in advance
_MAX_SKEW = 5.0  # seconds by which two processes may disagree about the store's time
_ROUNDING = 1.0001  # times since the epoch are exact to a microsecond
# Seconds after a cancellation for which the handler may still run. The worker learns of the cancellation at the latest
# when it renews the lease, which is every third of the lease. When the handler has ended, the worker frees the slot
# earlier.
CANCEL_GRACE = 90.0

Attempt = tuple[str, int]  # the id of a task and the number of the attempt


class Holder(Struct, frozen=True, array_like=True):
    attempt: int
    worker_id: str
    since: float = 0.0  # by the store's clock


class LimitState(Struct, frozen=True, kw_only=True):
    """What a note stores for one limit."""

    scope: str = ""
    holders: dict[str, dict[str, Holder]] = {}  # by group and id of the task
    next_at: dict[str, float] = {}  # by group: the first free start time, if it is in the future


class Reservation(Struct, frozen=True, kw_only=True):
    """The outcome of a request for slots and starts."""

    state: LimitState
    admitted: dict[str, float]  # start time by id
    refused: tuple[str, ...]  # ids


def tolerance(limit: Limit) -> float:
    """Seconds by which a start may be late."""
    return min(MAX_TOLERANCE, max(_MIN_TOLERANCE, _TOLERANCE_SHARE * limit.per))


def spacing(limit: Limit) -> float:
    """Seconds between two starts."""
    return (limit.per * _ROUNDING + tolerance(limit)) / limit.rate


def next_start(next_at: Mapping[str, float], group: str, limit: Limit, now: float) -> float:
    """The first start time that the rate allows.

    A stored time that this limit cannot have produced is ignored: the rate was lower then, or a clock was wrong.
    """
    at = next_at.get(group, now)
    return max(now, at) if at <= now + MAX_HORIZON + _MAX_SKEW + spacing(limit) else now


def without(state: LimitState, over: Collection[Attempt]) -> LimitState:
    """The state without holders whose attempts have ended."""
    if not over:
        return state
    gone = set(over)
    holders = {
        group: left
        for group, some in state.holders.items()
        if (left := {id: holder for id, holder in some.items() if (id, holder.attempt) not in gone})
    }
    return replace(state, holders=holders)


def reserve(
    state: LimitState,
    wanted: Sequence[tuple[Task, str, Limit]],
    *,
    now: float,
    horizon: float | Callable[[Limit], float],
    earliest: Mapping[str, float] | None = None,
) -> Reservation:
    """Give slots and starts to tasks in order. `wanted` has the group and the limit of each.

    A task whose start would be later than `horizon` seconds from now is refused. A task that is already a holder
    (because the response to a write was lost) keeps its slot. An attempt is refused if a later attempt of its task is a
    holder, because its lease has expired. `earliest` has the earliest start times of some tasks, by id.
    """
    holders = {group: dict(some) for group, some in state.holders.items()}
    instants = {group: at for group, at in state.next_at.items() if at > now}
    admitted: dict[str, float] = {}
    refused = []
    for task, group, limit in wanted:
        some = holders.get(group, {})
        if not _has_slot(some, task, limit):
            refused.append(task.id)
            continue
        if limit.rate:
            at = next_start(instants, group, limit, now)
            at = max(at, (earliest or {}).get(task.id, now))
            if at > now + (horizon if isinstance(horizon, float) else horizon(limit)):
                refused.append(task.id)
                continue
            instants[group] = at + spacing(limit)
        if limit.concurrency:
            holders.setdefault(group, {})[task.id] = Holder(task.attempt, task.worker_id or "", now)
        admitted[task.id] = at if limit.rate else now
    changed = replace(state, holders=holders, next_at=instants)
    return Reservation(state=changed, admitted=admitted, refused=tuple(refused))


def _has_slot(holders: Mapping[str, Holder], task: Task, limit: Limit) -> bool:
    """Whether a task has one of the slots of its group, or may take one."""
    if not limit.concurrency:
        return True
    before = holders.get(task.id)
    if before is None:
        return len(holders) < limit.concurrency
    # After the limit was lowered, a later attempt does not inherit the slot.
    is_holder = before.attempt == task.attempt
    return is_holder or (before.attempt < task.attempt and len(holders) <= limit.concurrency)


def slots_left(state: LimitState, group: str, limit: Limit) -> int | None:
    """Free slots of a group; None if its number is not limited."""
    return max(0, limit.concurrency - len(state.holders.get(group, {}))) if limit.concurrency else None


def starts_left(state: LimitState, group: str, limit: Limit, *, now: float, horizon: float) -> int | None:
    """How many tasks of a group may start within the horizon; None if its rate is not limited."""
    if not limit.rate:
        return None
    left = now + horizon - next_start(state.next_at, group, limit, now)
    return 0 if left < 0 else int(left / spacing(limit)) + 1


def attempts(state: LimitState, groups: Iterable[str] | None = None) -> list[Attempt]:
    """The attempts of the holders of some groups, or of all."""
    chosen = state.holders if groups is None else {group: state.holders.get(group, {}) for group in groups}
    return [(id, holder.attempt) for some in chosen.values() for id, holder in some.items()]


def over(found: Mapping[str, Task | None], holders: Iterable[Attempt], now: float) -> set[Attempt]:
    """The attempts that have ended. The handler of a cancelled task may still run for a while."""
    return {(id, attempt) for id, attempt in holders if _is_over(found.get(id), attempt, now)}


def _is_over(task: Task | None, attempt: int, now: float) -> bool:
    if task is None or task.attempt > attempt:
        return True
    if task.status is Status.CANCELLED:
        return now - task.updated_at >= CANCEL_GRACE
    return task.status is not Status.RUNNING
