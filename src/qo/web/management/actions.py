"""Actions on tasks and workers: retry, cancel, delete, pause, limit."""

from collections.abc import Callable
from typing import Annotated, Any, cast

from litestar import Request, delete, post
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta, Struct

from qo import model
from qo.client.describe import Priority, parse_instant
from qo.clock import instant
from qo.errors import InvalidTask, WrongStatus
from qo.model import Change, Filter, Status, Task, is_retrying, replay, replay_finished, retry_now, withdraw
from qo.web.http.access import ADMIN, HIDDEN, LIMITED, OPERATE, caller_of
from qo.web.http.action_recorder import describe_action
from qo.web.http.openapi import Rate
from qo.web.http.problems import problems
from qo.web.http.server import log_transition, server_of
from qo.web.http.visibility import found
from qo.web.management.views import Word, attempts, next_retry_at, word


class Retried(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    status: Word
    attempts: int
    next_retry_at: str | None


class Paused(Struct, frozen=True):
    paused: bool


class RateLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    tasks_per_second: Rate  # 0 removes the limit


class ManagedTime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    run_at: str  # ISO 8601; a time in the past means now


class ManagedPriority(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    priority: Annotated[int, Meta(ge=0, le=9)]


class Deleted(Struct, frozen=True):
    deleted: int


class NotNow(InvalidTask):
    """The status of the task does not allow the action. This API responds with 400, not 409."""


@post("/{task_id:str}/retry", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404))
async def retry_task(
    request: Request[Any, Any, Any], task_id: FromPath[str], *, completed: FromQuery[bool] = False
) -> Retried:
    """Retry a failed task now and reset its attempts. 400 if it has not failed. `completed` allows a completed task
    too, which loses its result."""
    client = server_of(request).client
    task = await found(request, task_id)
    if word(task) != "failed" and not (completed and word(task) == "completed"):
        raise NotNow("status", f"task {task.id} is {word(task)}, not failed")
    again = retry_now if is_retrying(task) else replay_finished if completed else replay
    (retried,) = await client.apply([again(task.id)])
    if not retried:
        raise NotNow("status", f"task {task.id} is no longer failed")  # a worker or another caller was faster
    describe_action(request).count(1)
    task = await found(request, task_id)
    log_transition(request, "retried", task)
    return _changed(task)


@post("/{task_id:str}/cancel", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404))
async def cancel_task(request: Request[Any, Any, Any], task_id: FromPath[str]) -> Retried:
    """Cancel an unfinished task: it is not attempted again, and the result of a running attempt is discarded.

    400 if the task has finished."""
    client = server_of(request).client
    task = await found(request, task_id)
    try:
        await client.cancel(task.id)
    except WrongStatus as error:
        raise NotNow("status", f"task {task.id} is {word(task)}; a finished task cannot be cancelled") from error
    describe_action(request).count(1)
    task = await found(request, task_id)
    log_transition(request, "cancelled", task)
    return _changed(task)


@post("/{task_id:str}/run-now", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404))
async def run_managed_now(request: Request[Any, Any, Any], task_id: FromPath[str]) -> Retried:
    """Run a task now that is due later, or waits for its retry. 400 for other tasks."""
    return await _operate(request, task_id, "run-now", model.run_now)


@post("/{task_id:str}/reschedule", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404, 413, 415))
async def reschedule_managed(
    request: Request[Any, Any, Any], task_id: FromPath[str], data: JSONBody[ManagedTime]
) -> Retried:
    """Change when a pending task runs (ISO 8601). 400 for other tasks."""
    at = parse_instant("runAt", data.run_at)
    return await _operate(request, task_id, "rescheduled", server_of(request).client.reschedule_change(at))


@post("/{task_id:str}/priority", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404, 413, 415))
async def prioritise_managed(
    request: Request[Any, Any, Any], task_id: FromPath[str], data: JSONBody[ManagedPriority]
) -> Retried:
    """Change the priority of a pending task: 0 to 9, lower first. 400 for other tasks."""
    change = server_of(request).client.priority_change(cast("Priority", data.priority))
    return await _operate(request, task_id, "priority", change)


async def _operate(
    request: Request[Any, Any, Any], task_id: str, transition: str, change: Callable[[str], Change]
) -> Retried:
    task = await found(request, task_id)
    if not all(await server_of(request).client.apply([change(task.id)])):
        raise NotNow("status", f"task {task.id} {_refusal(task)}")
    describe_action(request).count(1)
    task = await found(request, task_id)
    log_transition(request, transition, task)
    return _changed(task)


def _refusal(task: Task) -> str:
    """Why a pending task was required. A pending task is refused only if it is due, or was changed meanwhile."""
    return "is already due" if task.status is Status.PENDING else f"is {word(task)}, and does not wait for an attempt"


def _changed(task: Task) -> Retried:
    return Retried(id=task.id, status=word(task), attempts=attempts(task), next_retry_at=next_retry_at(task))


@delete("/{task_id:str}", opt=ADMIN | HIDDEN, responses=problems(404))
async def delete_task(request: Request[Any, Any, Any], task_id: FromPath[str]) -> None:
    """Delete a completed or failed task. 400 if it is pending or processing."""
    client = server_of(request).client
    task = await found(request, task_id)
    action = describe_action(request)
    if is_retrying(task):
        if not all(await client.apply([withdraw(task.id)])):
            raise NotNow("status", f"task {task.id} is no longer failed")  # a worker was faster
        action.verb, action.number = "cancel", 1  # the task is cancelled even if the deletion fails
    try:
        await client.delete(task.id)
    except WrongStatus as error:
        raise NotNow(
            "status", f"task {task.id} is {word(task)}; only completed and failed tasks can be deleted"
        ) from error
    action.verb = "delete"
    log_transition(request, "deleted", task)


@delete("/", opt=ADMIN | LIMITED, status_code=200, responses=problems())
async def clean_up(request: Request[Any, Any, Any], olderThan: FromQuery[str]) -> Deleted:  # noqa: N803 - the query's own name
    """Delete tasks that completed before `olderThan` (ISO 8601)."""
    server = server_of(request)
    try:
        before = instant(olderThan)
    except (ValueError, OverflowError) as error:
        raise InvalidTask("olderThan", f"{olderThan!r:.80} is not an ISO 8601 time; write + as %2B") from error
    ended = Filter(statuses=(Status.COMPLETED,), finished_for=max(0.0, server.clock() - before))
    where = caller_of(request).limits.narrow(ended)
    action = describe_action(request, f"completed before {olderThan:.40}")
    action.verb = "delete"
    deleted = 0 if where is None else await server.client.delete_all(where, progress=action.count)
    log_transition(request, "deleted", number=deleted)
    return Deleted(deleted)


@post("/pause", opt=OPERATE, status_code=200, responses=problems())
async def pause(request: Request[Any, Any, Any]) -> Paused:
    """Pause all workers: they start no more tasks."""
    control = await server_of(request).client.controls.pause()
    log_transition(request, "paused")
    return Paused(control.paused)


@post("/resume", opt=OPERATE, status_code=200, responses=problems())
async def resume(request: Request[Any, Any, Any]) -> Paused:
    """Resume all workers."""
    control = await server_of(request).client.controls.resume()
    log_transition(request, "resumed")
    return Paused(control.paused)


@post("/rate-limit", opt=OPERATE, status_code=200, responses=problems(413, 415))
async def limit_rate(request: Request[Any, Any, Any], data: JSONBody[RateLimit]) -> RateLimit:
    """Limit how many tasks each worker starts per second. 0 removes the limit."""
    describe_action(request, f"{data.tasks_per_second:g} per second")
    try:
        await server_of(request).client.controls.limit_rate(data.tasks_per_second)
    except InvalidTask as error:
        raise InvalidTask("tasksPerSecond", "must be a number of at least 0; 0 means no limit") from error
    log_transition(request, "limited", rate_limit=data.tasks_per_second)
    return data
