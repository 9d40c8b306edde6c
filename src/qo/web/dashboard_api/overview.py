"""The overview: one response from existing samples."""

import asyncio
from collections import Counter
from typing import Any

from litestar import Request, get
from msgspec import Struct

from qo.client import Client
from qo.clock import iso
from qo.model import UNFINISHED, Counts, Filter, LevelWord, PendingKind, Status, Task
from qo.notes import Controls, WorkerNote
from qo.web.callers import AccessLimits
from qo.web.dashboard_api.views import StatusWord, TaskDocument, WorkerState, brief, worker_state
from qo.web.http.access import LIMITED, READ, caller_of
from qo.web.http.problems import problems
from qo.web.http.server import Server, server_of
from qo.web.http.visibility import ControlsView, controls_view, visible_controls, visible_workers
from qo.web.stats.sampler import Sample, StoreView
from qo.web.stats.throughput import MinuteCount
from qo.web.task_words import LEVEL_WORDS

_AGE_FACTOR = 3.0  # a sample is reused for this many times its duration, so that slow stores are read less often
_MAX_FAILURES_READ = 100
_MAX_FAILURES = 10
_MAX_GROUPS = 200  # types or queues shown, the largest first


class QueueLine(Struct, frozen=True, kw_only=True):
    queue: str
    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    archived: int = 0
    live_types: int = 0  # types with unfinished tasks; limited by `controls.max_types`
    oldest_age: float | None = None
    paused: bool = False


class TypeLine(Struct, frozen=True, kw_only=True):
    type: str
    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    archived: int = 0
    unhandled: int = 0  # pending tasks that no worker handles


class PriorityLine(Struct, frozen=True, kw_only=True):
    priority: LevelWord
    depth: int
    oldest_age: float | None


class MinuteLine(Struct, frozen=True, kw_only=True):
    at: str
    completed: int
    failed: int


class Overview(Struct, frozen=True, kw_only=True):
    """The overview.

    `exact` is false while the queue is too long to be read completely; ages by priority are then lower bounds.
    `throughput` covers all processes and can lag by some seconds. It is not counted by queue, so it is empty for a
    token that is limited to queues.
    """

    at: str
    counts: dict[StatusWord, int]
    pending: dict[PendingKind, int]  # the pending tasks by kind; up to a minute old
    types: list[TypeLine]
    queues: list[QueueLine]
    priorities: list[PriorityLine]
    exact: bool
    workers: dict[WorkerState, int]
    throughput: list[MinuteLine]
    failures: list[TaskDocument]
    controls: ControlsView


@get("/overview", opt=READ | LIMITED, responses=problems())
async def show_overview(request: Request[Any, Any, Any]) -> Overview:
    """Counts, ages, workers, the throughput of the last hour, the latest failures, and the controls."""
    server = server_of(request)
    now = server.clock()
    limits = caller_of(request).limits
    view = server.views.of(limits)
    sample = await view.sampler.sample(max_age=_AGE_FACTOR * view.sampler.cost)
    control, workers, failures, minutes, unhandled = await asyncio.gather(
        server.client.controls.in_force(),
        visible_workers(request),
        _failures(server.client, limits),
        _minutes(server, limits),
        server.unhandled.by_type(limits),
    )
    control = visible_controls(control, limits, sample.counts)
    return Overview(
        at=iso(now),
        counts=_total(sample.counts),
        pending=await server.pending_kinds.total(await server.client.engine.count(), limits),
        types=[
            TypeLine(type=name, unhandled=unhandled.get(name, 0), **numbers)
            for name, numbers in _grouped(sample.counts, by_queue=False)
        ],
        queues=await _queues(view, sample, control, now),
        priorities=_priorities(sample, now),
        exact=sample.waiting.exact,
        workers=_workers(server, workers, now),
        throughput=[MinuteLine(at=iso(each.at), completed=each.completed, failed=each.failed) for each in minutes],
        failures=[brief(task, now) for task in failures],
        controls=controls_view(control),
    )


async def _minutes(server: Server, limits: AccessLimits) -> list[MinuteCount]:
    """Throughput is not counted by queue."""
    return [] if limits.queues else await server.recent_stats.series(limits.types)


async def _failures(client: Client, limits: AccessLimits) -> list[Task]:
    """The latest failures among the newest tasks."""
    where = limits.narrow(Filter(statuses=(Status.FAILED,)))
    tasks = [] if where is None else await client.engine.find_without_values(where, limit=_MAX_FAILURES_READ)
    return sorted(tasks, key=lambda task: -(task.completed_at or 0.0))[:_MAX_FAILURES]


async def _queues(view: StoreView, sample: Sample, control: Controls, now: float) -> list[QueueLine]:
    grouped = _grouped(sample.counts, by_queue=True)
    oldest = await view.oldest.due_since([name for name, numbers in grouped if numbers["pending"]], now)
    live_types = _live_types(sample.counts)
    return [
        QueueLine(
            queue=name,
            live_types=live_types[name],
            oldest_age=_age(oldest.get(name), now),
            paused=name in control.paused_queues,
            **numbers,
        )
        for name, numbers in grouped
    ]


def _live_types(counts: Counts) -> Counter[str]:
    """The number of types with unfinished tasks, by queue."""
    return Counter(
        queue for queue, _ in {(lane.queue, lane.type) for lane, n in counts.items() if n and lane.status in UNFINISHED}
    )


def _total(counts: Counts) -> dict[StatusWord, int]:
    total: dict[StatusWord, int] = {status.value: 0 for status in Status}
    for lane, number in counts.items():
        total[lane.status.value] += number
    return total


def _grouped(counts: Counts, *, by_queue: bool) -> list[tuple[str, dict[StatusWord, int]]]:
    groups: dict[str, dict[StatusWord, int]] = {}
    for lane, number in counts.items():
        group = groups.setdefault(lane.queue if by_queue else lane.type, {status.value: 0 for status in Status})
        group[lane.status.value] += number
    kept = [(name, numbers) for name, numbers in groups.items() if sum(numbers.values())]
    return sorted(kept, key=lambda item: (-sum(item[1].values()), item[0]))[:_MAX_GROUPS]


def _priorities(sample: Sample, now: float) -> list[PriorityLine]:
    waiting = sample.waiting
    return [
        PriorityLine(priority=level, depth=waiting.depth[level], oldest_age=_age(waiting.oldest[level], now))
        for level in LEVEL_WORDS
    ]


def _workers(server: Server, workers: list[WorkerNote], now: float) -> dict[WorkerState, int]:
    states: dict[WorkerState, int] = {"busy": 0, "idle": 0, "draining": 0, "stale": 0}
    for worker in workers:
        states[worker_state(worker, now, server.settings.dead_after)] += 1
    return states


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else round(max(0.0, now - since), 3)
