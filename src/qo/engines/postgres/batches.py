"""Batches as the columns that statements take."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from qo.engines.postgres.arrays import blobs, floats, integers, texts, uuids
from qo.engines.postgres.lanes import Key, LaneNumbers
from qo.engines.postgres.rows import encode_retry, plain
from qo.model import STRICT, Change, ClaimRequest, Guard, NewTask, RetryPolicy, Status, kind_of

T = TypeVar("T")


# All that most tasks of a batch have in common; what names the lane comes first.
Kind = tuple[str, str, tuple[str, ...], int, float, float, int, RetryPolicy, float]

_kind: Callable[[NewTask], Kind] = attrgetter(
    "queue", "type", "needs", "priority", "ageing", "timeout", "max_retries", "retry", "window"
)


class Batch:
    """New tasks as `add` takes them. What many have in common travels once."""

    def __init__(self, tasks: Sequence[NewTask]) -> None:
        self._tasks = tasks
        self._kinds: dict[Kind, int] = {}  # with its place among them, from 1
        self._places = [self._kinds.setdefault(kind, len(self._kinds) + 1) for kind in map(_kind, tasks)]

    def lanes(self) -> list[Key]:
        return [(queue, type, needs, priority) for queue, type, needs, priority, *_ in self._kinds]

    def columns(self, numbers: Mapping[Key, LaneNumbers]) -> dict[str, Any]:
        tasks, lanes = self._tasks, [numbers[lane] for lane in self.lanes()]
        _, _, _, priorities, ageings, timeouts, retries, policies, windows = zip(*self._kinds, strict=True)
        return {
            "size": len(tasks),
            "id": uuids([task.id for task in tasks]),
            "kind": integers(self._places),
            "payload": blobs([task.payload for task in tasks]),
            "delay": floats([task.delay for task in tasks]),
            "run_at": floats(_if_any([task.run_at for task in tasks])),
            "idempotency_key": texts(_if_any([task.idempotency_key for task in tasks])),
            "next_id": uuids(_next_ids(tasks)),
            "trace_id": texts(_if_any([task.trace_id for task in tasks])),
            "lane": integers([lane.lane for lane in lanes]),
            "lane_group": integers([lane.group for lane in lanes]),
            "priority": floats(priorities),
            "ageing": floats([min(ageing, STRICT) for ageing in ageings]),
            "timeout": floats(timeouts),
            "max_retries": integers(retries),
            "retry": texts([encode_retry(policy) for policy in policies]),
            "room": floats(windows),
        }


def _next_ids(tasks: Sequence[NewTask]) -> list[str]:
    """A task that cannot follow another has its own."""
    follows = any(task.next_id is not None for task in tasks)
    return [task.next_id or task.id for task in tasks] if follows else []


def _if_any(values: list[T | None]) -> list[T | None]:
    """`unnest` makes up for the nulls at the end of a list: one of nothing but nulls need not travel."""
    return [] if values.count(None) == len(values) else values


def wanted(request: ClaimRequest) -> dict[str, Any]:
    """What `claim` takes."""
    return {
        "queues": texts(request.queues),
        "types": texts(request.types),
        "capabilities": texts(sorted(request.capabilities)),
        "part": texts(list(request.per_type_limits)),
        "most": integers(list(request.per_type_limits.values())),
        "limit": max(request.limit, 0),
        "lease": float(request.lease),
        "lease_id": request.lease_id,
        "worker_id": request.worker_id,
        "is_prefetch": request.is_prefetch,
    }


def is_ordinary(change: Change) -> bool:
    """A completion with nothing else to it: what `complete` takes."""
    return (
        change.to is Status.COMPLETED
        and change.guard is Guard.HELD
        and change.result is not None
        and change.delay is change.lease is change.failures is None
    )


def completions(changes: Sequence[Change]) -> dict[str, Any]:
    return {
        "id": uuids([change.id for change in changes]),
        "lease_id": texts([change.lease_id for change in changes]),
        "result": blobs([change.result for change in changes]),
        "started_at": floats([change.started_at for change in changes]),
    }


def columns(changes: Sequence[Change]) -> dict[str, Any]:
    """What `change` takes."""
    return {
        "id": uuids([change.id for change in changes]),
        "guard": texts([change.guard.value for change in changes]),
        "to": texts([plain(change.to) for change in changes]),
        "lease_id": texts([change.lease_id for change in changes]),
        "grace": floats([change.grace for change in changes]),
        "delay": floats([change.delay for change in changes]),
        "lease": floats([change.lease for change in changes]),
        "failures": integers([change.failures for change in changes]),
        "result": blobs([change.result for change in changes]),
        "error": texts([change.error for change in changes]),
        "failure_kind": texts([_kind_text(change) for change in changes]),
        "started_at": floats([change.started_at for change in changes]),
    }


def _kind_text(change: Change) -> str | None:
    kind = kind_of(change.error, change.failure_kind)
    return None if kind is None else kind.value
