"""Read: tasks, their histories and results, statistics of the queue, workers."""

import contextlib
from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct
from msgspec.structs import replace

from qo.client import Client
from qo.codec import json_text
from qo.errors import ResultTimeout
from qo.model import (
    Filter,
    LevelWord,
    PendingKind,
    Status,
    Task,
    check_batch_id,
    check_cursor,
    check_name,
    check_names,
    check_types,
    cursor,
)
from qo.notes import WorkerNote
from qo.web.callers import AccessLimits
from qo.web.http.access import HIDDEN, LIMITED, READ, caller_of
from qo.web.http.byte_budget import RESPONSE_BYTES, find_within, history_within, size_of
from qo.web.http.problems import problems
from qo.web.http.server import Server, server_of
from qo.web.http.visibility import ExplanationView, check_visible, explanation_of, found, visible_workers
from qo.web.stats.sampler import Sample
from qo.web.task_words import LEVEL_WORDS, STATUSES, Word, is_finished, task_word
from qo.web.v1.views import (
    ErrorView,
    EventView,
    TaskView,
    WorkerView,
    error_view,
    event_view,
    task_view,
    worker_status,
    worker_view,
)

MAX_PAGE_SIZE = 500
_MAX_READ = 5_000  # tasks read for one page; `dead_letter` and `failed` are distinguished after reading


class TaskPage(Struct, frozen=True, kw_only=True):
    """`next` is the value of `after` for the next page, null on the last one. A short page can have a next one."""

    tasks: list[TaskView]
    next: str | None


class History(Struct, frozen=True, kw_only=True):
    task_id: str
    events: list[EventView]


class TaskResult(Struct, frozen=True, kw_only=True):
    task_id: str
    status: Word
    result: Any
    error: ErrorView | None


@get("/tasks/{task_id:str}", opt=READ | HIDDEN, responses=problems(404))
async def show_task(request: Request[Any, Any, Any], task_id: FromPath[str]) -> TaskView:
    """A task."""
    server = server_of(request)
    task = await found(request, task_id)
    return task_view(task, server.clock(), unhandled=task.id in await server.unhandled.ids([task]))


@get("/tasks", opt=READ | LIMITED, responses=problems())
async def list_tasks(
    *,
    request: Request[Any, Any, Any],
    status: FromQuery[list[Word] | None] = None,
    type: FromQuery[list[str] | None] = None,
    queue: FromQuery[list[str] | None] = None,
    worker: FromQuery[str | None] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE_SIZE)] = 50,
    after: FromQuery[str] = "",
    archived: FromQuery[bool] = False,
    pending: FromQuery[list[PendingKind] | None] = None,
    batch: FromQuery[str | None] = None,
) -> TaskPage:
    """Tasks, newest first. Each filter can be repeated. `archived` shows archived tasks instead of the others.
    `pending` shows only these kinds of queued tasks: ready, scheduled (due later), retrying (due after a failure)."""
    server = server_of(request)
    requested = replace(
        filter_of(status, type, queue, worker, archived=archived),
        pending=tuple(pending or ()),
        batch=None if batch is None else check_batch_id("batch", batch),
    )
    where = caller_of(request).limits.narrow(requested)
    tasks, following = await page(server.client, where, set(status or STATUSES), limit=limit, after=after)
    now = server.clock()
    unhandled = await server.unhandled.ids(tasks)
    return TaskPage(tasks=[task_view(task, now, unhandled=task.id in unhandled) for task in tasks], next=following)


@get("/tasks/{task_id:str}/history", opt=READ | HIDDEN, responses=problems(404))
async def show_history(request: Request[Any, Any, Any], task_id: FromPath[str]) -> History:
    """All transitions of a task, oldest first. Of a very long history, older logs are omitted and older errors cut."""
    task = await found(request, task_id)
    events = await history_within(server_of(request).client.engine, task.id)
    return History(task_id=task.id, events=[event_view(event, task) for event in events])


@get("/tasks/{task_id:str}/explain", opt=READ | HIDDEN, responses=problems(404))
async def explain_waiting(request: Request[Any, Any, Any], task_id: FromPath[str]) -> ExplanationView:
    """Why a task is waiting: due later, paused, no worker for it, all slots busy, how many tasks go before it."""
    return await explanation_of(request, await found(request, task_id))


@get(
    "/tasks/{task_id:str}/result",
    opt=READ | HIDDEN,
    responses={
        **problems(404),
        202: ResponseSpec(TaskResult, generate_examples=False, description="The task has not finished yet."),
    },
)
async def show_result(
    request: Request[Any, Any, Any], task_id: FromPath[str], wait: Annotated[float, QueryParameter(ge=0, le=3600)] = 0.0
) -> Response[TaskResult]:
    """The result of a task: 200 if it has finished, 202 if it has not within `wait` seconds (at most a minute)."""
    server = server_of(request)
    task_id = await check_visible(request, task_id)
    with contextlib.suppress(ResultTimeout):  # the status shows it
        await server.client.ended(task_id, timeout=min(wait, server.settings.longest_wait))
    await server.gate.check_still_admitted(caller_of(request))
    task = await found(request, task_id)
    outcome = TaskResult(task_id=task.id, status=task_word(task), result=_result(task), error=error_view(task))
    return Response(outcome, status_code=200 if is_finished(task) else 202)


def _result(task: Task) -> Any:
    return json_text(task.result) if task.result is not None and task_word(task) == "completed" else None


def filter_of(
    words: list[Word] | None,
    types: list[str] | None,
    queues: list[str] | None,
    worker: str | None = None,
    *,
    archived: bool = False,
) -> Filter:
    statuses = tuple(dict.fromkeys(STATUSES[word] for word in words or STATUSES))
    return Filter(
        statuses=(Status.ARCHIVED,) if archived else statuses,
        types=check_types("type", types or ()),
        queues=check_names("queue", queues or ()),
        worker_id=None if worker is None else check_name("worker", worker),
    )


async def page(
    client: Client, where: Filter | None, words: set[Word], *, limit: int, after: str
) -> tuple[list[Task], str | None]:
    """Up to `limit` tasks with one of these statuses, and the position of the next page, None if this is the last.

    Fewer tasks if they are large, see `byte_budget`. None as the filter means that nothing can match."""
    check_cursor(after)
    if where is None:
        return [], None
    tasks: list[Task] = []
    read = size = 0
    while read < _MAX_READ and size < RESPONSE_BYTES:
        batch = await find_within(client.engine, where, limit=limit + 1, after=after, budget=RESPONSE_BYTES - size)
        read += len(batch.tasks)
        for task in batch.tasks:
            if len(tasks) == limit:
                return tasks, after
            after = cursor(task)
            if task_word(task) in words:
                tasks.append(task)
                size += size_of(task)
        if len(batch.tasks) <= limit and not batch.is_cut:
            return tasks, None
    return tasks, after


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
    """`exact` is false while the queue is too long to be read completely; the ages are then lower bounds. `throughput`
    is not counted by queue and is null for a token that is limited to queues. `unhandled` counts, by type, the queued
    tasks that no worker handles. `pending` counts queued tasks by kind: ready, scheduled (due later) and retrying (due
    after a failure); it can be up to a minute old, and counts up to 20,000 tasks that are due later."""

    queues: dict[LevelWord, Depth]
    workers: WorkerCounts
    throughput: Throughput | None
    exact: bool
    unhandled: dict[str, int]
    pending: dict[PendingKind, int]


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
        pending=await server.pending_kinds.total(await server.client.engine.count(), limits),
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
