"""Batches as the columns that statements take."""

from collections.abc import Mapping, Sequence
from typing import Any

from qo.engines.postgres.arrays import blobs, floats, integers, texts, uuids
from qo.engines.postgres.lanes import Key
from qo.engines.postgres.rows import encode_retry, plain
from qo.model import STRICT, Change, Guard, NewTask, Status, Want


def described(tasks: Sequence[NewTask], numbers: Mapping[Key, int]) -> dict[str, Any]:
    """What `add` takes. Tasks of one batch mostly have all but id and payload in common, and that travels once."""
    kinds: dict[tuple[Any, ...], int] = {}
    places = []
    for task in tasks:
        lane = numbers[task.queue, task.type, task.needs, task.priority]
        kind = (lane, task.priority, task.ageing, task.timeout, task.max_retries, task.retry, task.window)
        places.append(kinds.setdefault(kind, len(kinds) + 1))
    lanes, priorities, ageings, timeouts, retries, policies, windows = zip(*kinds, strict=True)
    return {
        "size": len(tasks),
        "id": uuids([task.id for task in tasks]),
        "kind": integers(places),
        "payload": blobs([task.payload for task in tasks]),
        "delay": floats([task.delay for task in tasks]),
        "run_at": floats([task.run_at for task in tasks]),
        "idempotency_key": texts([task.idempotency_key for task in tasks]),
        "trace_id": texts([task.trace_id for task in tasks]),
        "lane": integers(lanes),
        "priority": floats(priorities),
        "ageing": floats([min(ageing, STRICT) for ageing in ageings]),
        "timeout": floats(timeouts),
        "max_retries": integers(retries),
        "retry": texts([encode_retry(policy) for policy in policies]),
        "room": floats(windows),
    }


def wanted(want: Want) -> dict[str, Any]:
    """What `claim` takes."""
    return {
        "queues": texts(want.queues),
        "types": texts(want.types),
        "capabilities": texts(sorted(want.capabilities)),
        "part": texts(list(want.at_most)),
        "most": integers(list(want.at_most.values())),
        "limit": max(want.limit, 0),
        "lease": float(want.lease),
        "lease_id": want.lease_id,
        "worker_id": want.worker_id,
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
    }
