"""Selection of tasks: filters, claim requests, keys of counts, and positions in a listing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from qo.errors import InvalidSetting, InvalidTask
from qo.model.check import check_id, check_number
from qo.model.group import group_in, group_key
from qo.model.ranking import MEDIUM
from qo.model.task import BLOCKED_AT, FINISHED, LATEST, Status, Task
from qo.model.text import show


class PendingKind(StrEnum):
    """What a pending task is waiting for."""

    __hash__ = str.__hash__

    READY = "ready"  # for a worker: it is due
    SCHEDULED = "scheduled"  # for the time it was submitted or rescheduled for
    RETRYING = "retrying"  # for the end of its back-off
    BLOCKED = "blocked"  # for other tasks of its workflow


class Filter(Struct, frozen=True, kw_only=True):
    """An empty field means all."""

    queues: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    statuses: tuple[Status, ...] = ()
    worker_id: str | None = None
    expired_for: float | None = None  # running, and the lease expired at least this many seconds ago
    finished_for: float | None = None  # finished at least this many seconds ago
    shards: tuple[str, ...] = ()  # first digits of ids
    retrying: bool | None = None  # of pending tasks: True only those that failed before, False only the others
    pending: tuple[PendingKind, ...] = ()  # of pending tasks: only these kinds
    batch: str | None = None

    def matches(self, task: Task, now: float) -> bool:
        return self.matcher(now)(task)

    def matcher(self, now: float) -> Callable[[Task], bool]:
        """As `matches`, for many tasks: the cost per task does not depend on the number of names."""
        covers, statuses, shards = self.lane_matcher(), frozenset(self.statuses), frozenset(self.shards)
        kinds = frozenset(self.pending)
        return lambda task: (
            covers(task.queue, task.type)
            and (not statuses or task.status in statuses)
            and (self.worker_id is None or task.worker_id == self.worker_id)
            and (self.batch is None or task.batch == self.batch)
            and (self.expired_for is None or _expired(task, now - self.expired_for))
            and (self.finished_for is None or _finished(task, now - self.finished_for))
            and (not shards or task.id[0] in shards)
            and (self.retrying is None or task.status is not Status.PENDING or is_retrying(task) is self.retrying)
            and (not kinds or task.status is not Status.PENDING or pending_kind(task, now) in kinds)
        )

    def lane_matcher(self) -> Callable[[str, str], bool]:
        """Whether tasks of a queue and a type may match."""
        return lane_matcher(self.queues, self.types)

    @property
    def possible_statuses(self) -> frozenset[Status]:
        """The statuses of tasks that may match; none if the filter contradicts itself."""
        statuses = frozenset(self.statuses or Status)
        if self.expired_for is not None:
            statuses &= {Status.RUNNING}
        if self.finished_for is not None:
            statuses &= FINISHED
        return statuses


def lane_matcher(queues: Iterable[str], types: Iterable[str]) -> Callable[[str, str], bool]:
    """Whether a queue and a type are listed; an empty list means all. The cost is the same for any number of names."""
    queues, types = frozenset(queues), frozenset(types)
    if not queues and not types:
        return lambda queue, type_: True  # noqa: ARG005 - all
    return lambda queue, type_: (not queues or queue in queues) and (not types or type_ in types)


def is_retrying(task: Task) -> bool:
    """Whether an attempt failed and the task is waiting for the next one."""
    return task.status is Status.PENDING and task.failures > 0


def pending_kind(task: Task, now: float) -> PendingKind | None:
    """What a pending task is waiting for at `now`; None for other tasks."""
    if task.status is not Status.PENDING:
        return None
    if task.available_at <= now:
        return PendingKind.READY
    if task.available_at == BLOCKED_AT:
        return PendingKind.BLOCKED
    return PendingKind.RETRYING if task.failures > 0 else PendingKind.SCHEDULED


def statuses_and_kinds(names: Iterable[str]) -> tuple[tuple[Status, ...], tuple[PendingKind, ...]]:
    """The `statuses` and `pending` of a filter for names of statuses and kinds. Raises ValueError.

    With `pending` itself among the names, every kind matches.
    """
    kinds = {name for name in names if name in frozenset(PendingKind)}
    statuses = {Status(name) for name in names if name not in kinds}
    if kinds and Status.PENDING not in statuses:
        return (
            tuple(status for status in Status if status in statuses or status is Status.PENDING),
            tuple(kind for kind in PendingKind if kind in kinds),
        )
    return tuple(status for status in Status if status in statuses), ()


def _expired(task: Task, before: float) -> bool:
    return task.status is Status.RUNNING and (task.lease_expires_at or 0.0) <= before


def _finished(task: Task, before: float) -> bool:
    return task.status in FINISHED and (task.completed_at or 0.0) <= before


class CountKey(NamedTuple):
    """The key of a count."""

    queue: str
    type: str
    status: Status
    priority: int = MEDIUM


Counts = dict[CountKey, int]


_LOWEST_ID = "00000000-0000-0000-0000-000000000000"  # a valid id that sorts before all others


class Position(NamedTuple):
    """The position of a task in a listing, newest first."""

    created_at: float
    id: str


def cursor(task: Task) -> str:
    """The position of a task in a listing, as the start of the next page. Opaque: only engines read it."""
    return f"{task.created_at!r}~{task.id}"


def check_cursor(cursor: str) -> str:
    """Raise InvalidSetting for an invalid cursor; the empty string is the start of a listing."""
    if cursor:
        _position(cursor)
    return cursor


def page_start(after: str, created_before: float | None) -> Position | None:
    """For engines: the position after which a page of `find` starts; None for the newest task."""
    starts = [_position(after)] if after else []
    if created_before is not None:
        starts.append(Position(created_before, _LOWEST_ID))
    return min(starts, default=None)


def _position(cursor: str) -> Position:
    created_at, _, task_id = cursor.partition("~")
    try:
        found = Position(float(created_at), check_id(task_id))
        check_number("created_at", found.created_at, maximum=LATEST)
    except (ValueError, InvalidTask) as error:
        raise InvalidSetting(
            f"{show(cursor)} is not a position in a listing; pass the one that the previous page returned"
        ) from error
    return found


EXPIRY_GRACE = 5.0  # seconds after the expiry of a lease before its task is retried, because clocks differ
LEASE = 60.0  # seconds


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """Empty `queues` or `types` means all."""

    worker_id: str
    lease_id: str  # random, new for every claim; a repeat uses the same one
    queues: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    capabilities: frozenset[str] = frozenset()
    limit: int = 1
    lease: float = LEASE
    per_type_limits: Mapping[str, int] = {}  # for some types, fewer than `limit`
    takes_groups: bool = False  # also tasks with a group; the worker applies their limits
    per_group_limits: Mapping[str, int] = {}  # by type: at most this many tasks of each of its groups
    group_limits: Mapping[str, int] = {}  # by `group_key`: overrides `per_group_limits`; 0 excludes the group
    is_prefetch: bool = False  # the handlers start later: `started_at` stays None until a change sets it
    is_repeat: bool = False  # the first response was lost: return the tasks it leased, if any


def eligibility(request: ClaimRequest) -> Callable[[str, str, Sequence[str]], bool]:
    """As `eligible`, for many tasks: the cost per task does not depend on the number of names."""
    covers, capabilities = lane_matcher(request.queues, request.types), request.capabilities
    if not request.takes_groups:
        return lambda queue, type_, needs: covers(queue, type_) and capabilities.issuperset(needs)

    def is_eligible(queue: str, type: str, needs: Sequence[str]) -> bool:
        if not covers(queue, type):
            return False
        group = group_in(needs)
        if group is None:
            return capabilities.issuperset(needs)
        return group_limit(request, type, group) > 0 and capabilities.issuperset(needs[1:])

    return is_eligible


def eligible(request: ClaimRequest, queue: str, type: str, needs: Sequence[str]) -> bool:
    """Whether a request may claim tasks of a queue and type with these needs, as a store keeps them."""
    return eligibility(request)(queue, type, needs)


def group_limit(request: ClaimRequest, type: str, group: str) -> int:
    """How many tasks of a group a claim may take."""
    most = request.group_limits.get(group_key(type, group))
    return request.per_group_limits.get(type, request.limit or 1) if most is None else most


def without_group_limits(request: ClaimRequest) -> ClaimRequest:
    """The same request for all groups, whether or not they are full."""
    return replace(request, per_group_limits={}, group_limits={}) if has_group_limits(request) else request


def has_group_limits(request: ClaimRequest) -> bool:
    return bool(request.per_group_limits or request.group_limits)


class ClaimAllowance:
    """What is left of a request's limits for types and groups while tasks are chosen in order."""

    def __init__(self, request: ClaimRequest) -> None:
        self._request = request
        self._is_limited = bool(request.per_type_limits) or has_group_limits(request)
        self._types: dict[str, int] = dict(request.per_type_limits)
        self._groups: dict[str, int] = {}

    def take(self, type: str, needs: Sequence[str]) -> bool:
        """Count a task. False: the limit of its type or its group is reached."""
        if not self._is_limited:
            return True
        if self._types.get(type, 1) <= 0:
            return False
        group = group_in(needs)
        if group is not None:
            key = group_key(type, group)
            left = self._groups.get(key)
            left = group_limit(self._request, type, group) if left is None else left
            if left <= 0:
                return False
            self._groups[key] = left - 1
        if type in self._types:
            self._types[type] -= 1
        return True

    def give_back(self, type: str, needs: Sequence[str]) -> None:
        """Undo `take` for a task that was not claimed."""
        if type in self._types:
            self._types[type] += 1
        group = group_in(needs)
        if group is not None and (key := group_key(type, group)) in self._groups:
            self._groups[key] += 1

    def limits_left(self) -> tuple[dict[str, int], dict[str, int]]:
        """The limits per type, and by `group_key`, of a request for the rest."""
        return self._types, {**self._request.group_limits, **self._groups}
