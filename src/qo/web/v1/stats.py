"""Statistics of the queue, and the workers."""

from typing import Any

from litestar import Request, get
from msgspec import Struct

from qo.model import LevelWord
from qo.notes import WorkerNote
from qo.web.callers import AccessLimits
from qo.web.http.access import LIMITED, READ, caller_of
from qo.web.http.problems import problems
from qo.web.http.server import Server, server_of
from qo.web.http.visibility import visible_workers
from qo.web.stats.sampler import Sample
from qo.web.task_words import LEVEL_WORDS
from qo.web.v1.views import WorkerView, worker_status, worker_view


class Depth(Struct, frozen=True, kw_only=True):
    depth: int
    oldest_age_seconds: float  # time since the oldest task became due; 0 if none is due


class WorkerCounts(Struct, frozen=True, kw_only=True):
    active: int
    draining: int
    dead: int
    total_capacity: int
    used_capacity: int


class Throughput(Struct, frozen=True, kw_only=True):
    completed_last_minute: int
    failed_last_minute: int


class QueueStats(Struct, frozen=True, kw_only=True):
    """`exact` is false while the queue is too long to be read completely: the ages are lower bounds then. `throughput`
    is not counted by queue and is null for a token that is limited to queues. `unhandled` counts, by type, the queued
    tasks that no worker handles."""

    queues: dict[LevelWord, Depth]
    workers: WorkerCounts
    throughput: Throughput | None
    exact: bool
    unhandled: dict[str, int]


class WorkerList(Struct, frozen=True, kw_only=True):
    workers: list[WorkerView]


@get("/queue/stats", opt=READ | LIMITED, responses=problems())
async def show_stats(request: Request[Any, Any, Any]) -> QueueStats:
    """Depth and age by priority, workers, and the throughput of the last minute."""
    server = server_of(request)
    limits = caller_of(request).limits
    sample = await server.views.of(limits).sampler.sample(max_age=0.0)
    return QueueStats(
        queues=depths(sample, server.clock()),
        workers=_worker_counts(server, await visible_workers(request)),
        throughput=await _throughput(server, limits),
        exact=sample.waiting.exact,
        unhandled=await server.unhandled.by_type(limits),
    )


@get("/workers", opt=READ | LIMITED, responses=problems())
async def list_workers(request: Request[Any, Any, Any]) -> WorkerList:
    """All registered workers, including dead ones. A limited token sees the workers for its queues and types."""
    server = server_of(request)
    now, dead_after = server.clock(), server.settings.dead_after
    return WorkerList(workers=[worker_view(worker, now, dead_after) for worker in await visible_workers(request)])


async def _throughput(server: Server, limits: AccessLimits) -> Throughput | None:
    if limits.queues:
        return None
    last_minute = await server.recent_stats.last_minute(limits.types)
    return Throughput(completed_last_minute=last_minute.completed, failed_last_minute=last_minute.failed)


def depths(sample: Sample, now: float) -> dict[LevelWord, Depth]:
    waiting = sample.waiting
    return {
        level: Depth(depth=waiting.depth[level], oldest_age_seconds=_age(waiting.oldest[level], now))
        for level in LEVEL_WORDS
    }


def _age(since: float | None, now: float) -> float:
    return 0.0 if since is None else round(max(0.0, now - since), 3)


def _worker_counts(server: Server, workers: list[WorkerNote]) -> WorkerCounts:
    now, dead_after = server.clock(), server.settings.dead_after
    states = [worker_status(worker, now, dead_after) for worker in workers]
    alive = [worker for worker, state in zip(workers, states, strict=True) if state != "dead"]
    return WorkerCounts(
        active=states.count("active"),
        draining=states.count("draining"),
        dead=states.count("dead"),
        total_capacity=sum(worker.capacity for worker in alive),
        used_capacity=sum(worker.current_load for worker in alive),
    )
