"""Submit tasks, one or many."""

from functools import lru_cache
from typing import Annotated, Any

from litestar import Request, Response, post
from litestar.params import JSONBody
from msgspec import Meta, Struct

from qo.client import parse_instant
from qo.errors import InvalidTask
from qo.model import (
    LevelWord,
    NewTask,
    OnDuplicate,
    RetryPolicy,
    Status,
    UniqueUntil,
    due_at,
    effective_rank,
    rank,
)
from qo.web.callers import Caller
from qo.web.http.access import CHECKED, SUBMIT, caller_of
from qo.web.http.openapi import BatchName, Instant, Key, Name, Retries, Seconds, TypeName
from qo.web.http.problems import problems
from qo.web.http.request import UniqueBy, encode_payload, rename_field, trace_of, unique_of, with_own_key
from qo.web.http.server import Server, log_transition, server_of
from qo.web.http.visibility import check_may_submit
from qo.web.task_words import Word, task_word

MAX_TASKS = 10_000  # in one request
_NAMES = {
    "type": "task_type",
    "payload": "parameters",
    "needs": "required_capabilities",
    "timeout": "timeout_seconds",
    "unique.within": "unique.within_seconds",
}


class UniqueArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most one task of a queue and type with the same arguments: all of them, or those that `by` names. It is unique
    until it has started or finished, and for at least `within_seconds` after it was submitted. A duplicate returns the
    existing task (`keep`), gives a waiting one its parameters, priority and time (`replace`), or is a 409 (`raise`)."""

    by: UniqueBy = "args"
    within_seconds: Seconds | None = None
    until: UniqueUntil = "finished"
    on_duplicate: OnDuplicate = "keep"


class SubmitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new task. Only `task_type` is required."""

    task_type: TypeName
    priority: LevelWord = "medium"
    parameters: dict[str, Any] = {}
    required_capabilities: list[Name] = []
    timeout_seconds: Seconds | None = None
    idempotency_key: Key | None = None
    queue: Name = "default"
    max_retries: Retries | None = None
    run_at: Instant | None = None
    trace_id: Key | None = None
    batch: BatchName | None = None
    unique: UniqueArguments | None = None
    # A parameter, whose value is the group of the task.
    fair_by: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class Bulk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tasks: Annotated[list[SubmitRequest], Meta(min_length=1, max_length=MAX_TASKS)]


class Receipt(Struct, frozen=True, kw_only=True):
    """The submitted task. `queue_position` is null for a task that is not waiting, and for a token that is limited to
    queues or types."""

    task_id: str
    status: Word
    queue_position: int | None


class BulkReceipt(Struct, frozen=True, kw_only=True):
    task_id: str
    status: Word


class BulkReceipts(Struct, frozen=True, kw_only=True):
    tasks: list[BulkReceipt]
    new: int  # tasks that did not exist before under their idempotency key


@post("/tasks", opt=SUBMIT | CHECKED, responses=problems(409, 413, 415))
async def submit_task(request: Request[Any, Any, Any], data: JSONBody[SubmitRequest]) -> Response[Receipt]:
    """Submit a task: 201 if it is new, 200 with the current status of an existing task that has its idempotency key or
    its unique arguments.

    409 if the key belongs to a task with another payload."""
    server, caller = server_of(request), caller_of(request)
    task = new_task(server, caller, data, trace_of(request))
    check_may_submit(request, [task])
    await server.position.refresh()
    submitted = await server.client.submit(task)
    if submitted.new:
        log_transition(request, "queued", task_id=submitted.id, type=task.type, queue=task.queue)
        position = _position(server, task)
        shown = position if caller.limits.is_whole else None  # it depends on tasks outside the limits
        return Response(Receipt(task_id=submitted.id, status="queued", queue_position=shown))
    (existing,) = await server.client.engine.get([submitted.id])
    if existing is None:  # deleted in the meantime, or damaged
        await server.client.check_not_damaged(submitted.id)
        return Response(Receipt(task_id=submitted.id, status="completed", queue_position=None), status_code=200)
    waits = existing.status is Status.PENDING and caller.limits.is_whole
    rank_now = effective_rank(existing.rank, existing.due_at, server.clock())
    at = server.position.of(rank_now, existing.priority, new=False) if waits else None
    receipt = Receipt(task_id=existing.id, status=task_word(existing), queue_position=at)
    return Response(receipt, status_code=200)


@post("/tasks/bulk", opt=SUBMIT | CHECKED, responses=problems(409, 413, 415))
async def submit_tasks(request: Request[Any, Any, Any], data: JSONBody[Bulk]) -> BulkReceipts:
    """Submit many tasks in one call. If one is invalid, none is added, and `field` names it."""
    server, caller = server_of(request), caller_of(request)
    trace = trace_of(request)
    tasks = [new_task(server, caller, each, trace, f"tasks[{number}].") for number, each in enumerate(data.tasks)]
    check_may_submit(request, tasks)
    submitted = await server.client.submit_many(tasks)
    old = [each.id for each in submitted if not each.new]
    known = await server.client.engine.get_without_values(list(dict.fromkeys(old))) if old else []
    existing = {task.id: task for task in known if task is not None}
    new = len(submitted) - len(old)
    log_transition(request, "queued", number=new)
    receipts = [
        BulkReceipt(task_id=each.id, status=task_word(existing[each.id]) if each.id in existing else "queued")
        for each in submitted
    ]
    return BulkReceipts(tasks=receipts, new=new)


def new_task(server: Server, caller: Caller, given: SubmitRequest, trace_id: str, prefix: str = "") -> NewTask:
    """A task with the defaults of its level where the submission sets nothing."""
    level = server.settings.levels[given.priority]
    try:
        task = server.client.new_task(
            given.task_type,
            encode_payload(given.parameters),
            queue=given.queue,
            priority=given.priority,
            needs=tuple(given.required_capabilities),
            timeout=level.timeout_seconds if given.timeout_seconds is None else given.timeout_seconds,
            max_retries=level.max_retries if given.max_retries is None else given.max_retries,
            retry=_policy(server.settings.timeout_growth),
            run_at=None if given.run_at is None else parse_instant("run_at", given.run_at),
            idempotency_key=given.idempotency_key,
            trace_id=given.trace_id or trace_id,
            batch=given.batch,
            unique=unique_of(given.unique),
            fair_by=given.fair_by,
        )
    except InvalidTask as error:
        raise rename_field(error, _NAMES, prefix) from error
    return with_own_key(task, caller)


@lru_cache
def _policy(timeout_growth: float) -> RetryPolicy:
    return RetryPolicy(timeout_growth=timeout_growth)


def _position(server: Server, task: NewTask) -> int:
    now = server.clock()
    due = now + task.delay if task.run_at is None else due_at(task.run_at, now)
    return server.position.of(rank(due, task.priority, task.ageing), task.priority)
