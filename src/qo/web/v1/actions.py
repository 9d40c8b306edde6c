"""Actions on tasks (cancel, replay, archive, delete), and the controls of all workers: pauses, limits and drains."""

from typing import Annotated, Any, cast

from litestar import Request, delete, get, post
from litestar.exceptions import NotFoundException, PermissionDeniedException
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta, Struct

from qo import notes
from qo.client.describe import Priority, parse_instant
from qo.clock import iso
from qo.errors import InvalidTask, WrongStatus
from qo.model import LevelWord, Status, check_name, check_number
from qo.model.task import LATEST
from qo.web.http.access import ADMIN, CHECKED, HIDDEN, LIMITED, OPERATE, READ, caller_of
from qo.web.http.action_recorder import describe_action
from qo.web.http.openapi import Name, Rate, TypeName
from qo.web.http.problems import problems
from qo.web.http.server import log_transition, server_of
from qo.web.http.visibility import (
    ControlsView,
    check_visible,
    controls_view,
    found,
    is_inside,
    visible_controls,
    visible_workers,
)
from qo.web.task_words import Word, task_word

PriorityLevel = Annotated[int, Meta(ge=0, le=9)] | LevelWord


class ChangedTask(Struct, frozen=True, kw_only=True):
    """A task after an action."""

    task_id: str
    status: Word


class NewTime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either an ISO 8601 time, or seconds from now."""

    run_at: str | None = None
    delay_seconds: Annotated[float, Meta(ge=0, le=3_200_000_000)] | None = None


class NewPriority(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """0 to 9, lower first, or a level."""

    priority: PriorityLevel


@delete("/tasks/{task_id:str}", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404, 409))
async def cancel_task(request: Request[Any, Any, Any], task_id: FromPath[str]) -> ChangedTask:
    """Cancel an unfinished task. A worker that runs it loses its lease. Cancelling it again has no effect."""
    client = server_of(request).client
    task_id = await check_visible(request, task_id)
    try:
        await client.cancel(task_id)
    except WrongStatus:
        task = await found(request, task_id)
        if task.status is not Status.CANCELLED:
            raise
        describe_action(request).number = 0
    else:
        log_transition(request, "cancelled", task_id=task_id)
    return ChangedTask(task_id=task_id, status="cancelled")


@post("/tasks/{task_id:str}/replay", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404, 409))
async def replay_task(
    request: Request[Any, Any, Any], task_id: FromPath[str], *, completed: FromQuery[bool] = False
) -> ChangedTask:
    """Run a failed, cancelled or archived task again and reset its retries. `completed` allows a completed task too,
    which loses its result."""
    client = server_of(request).client
    task_id = await check_visible(request, task_id)
    await client.replay(task_id, completed=completed)
    log_transition(request, "replayed", task_id=task_id)
    return ChangedTask(task_id=task_id, status="queued")


@post("/tasks/{task_id:str}/run-now", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404, 409))
async def run_task_now(request: Request[Any, Any, Any], task_id: FromPath[str]) -> ChangedTask:
    """Make a scheduled or retrying task due now. 409 if it is already due."""
    task_id = await check_visible(request, task_id)
    await server_of(request).client.run_now(task_id)
    log_transition(request, "run-now", task_id=task_id)
    return ChangedTask(task_id=task_id, status="queued")


@post("/tasks/{task_id:str}/reschedule", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404, 409, 413, 415))
async def reschedule_task(
    request: Request[Any, Any, Any], task_id: FromPath[str], data: JSONBody[NewTime]
) -> ChangedTask:
    """Change when a queued task becomes due. A time in the past means now."""
    server = server_of(request)
    task_id = await check_visible(request, task_id)
    at = new_time(data.run_at, data.delay_seconds, server.clock())
    describe_action(request, f"to {iso(at)}")
    await server.client.reschedule(task_id, at)
    log_transition(request, "rescheduled", task_id=task_id)
    return ChangedTask(task_id=task_id, status="queued")


def new_time(run_at: str | None, delay: float | None, now: float) -> float:
    """The time that a request gives in one of two ways. Raises InvalidTask."""
    if (run_at is None) == (delay is None):
        raise InvalidTask("run_at", "send either run_at or delay_seconds")
    at = now + (delay or 0.0) if run_at is None else parse_instant("run_at", run_at)
    check_number("run_at", at, maximum=LATEST)  # before `iso`, which raises for times outside of the calendar
    return at


@post("/tasks/{task_id:str}/priority", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404, 409, 413, 415))
async def prioritise_task(
    request: Request[Any, Any, Any], task_id: FromPath[str], data: JSONBody[NewPriority]
) -> ChangedTask:
    """Change the priority of a queued task. It ranks as if it had been submitted with it."""
    task_id = await check_visible(request, task_id)
    describe_action(request, f"to {data.priority}")
    await server_of(request).client.set_priority(task_id, cast("Priority", data.priority))
    log_transition(request, "priority", task_id=task_id)
    return ChangedTask(task_id=task_id, status="queued")


@post("/tasks/{task_id:str}/archive", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404, 409))
async def archive_task(request: Request[Any, Any, Any], task_id: FromPath[str]) -> ChangedTask:
    """Archive a finished task. Archived tasks are not in the default listing."""
    client = server_of(request).client
    task_id = await check_visible(request, task_id)
    await client.archive(task_id)
    describe_action(request).count(1)
    task = await found(request, task_id)
    log_transition(request, "archived", task)
    return ChangedTask(task_id=task_id, status=task_word(task))


@post("/tasks/{task_id:str}/delete", opt=ADMIN | HIDDEN, status_code=204, responses=problems(404, 409))
async def delete_task(
    request: Request[Any, Any, Any], task_id: FromPath[str], *, cancel: FromQuery[bool] = False
) -> None:
    """Delete a finished task and its history. With `cancel`, a queued task is cancelled and deleted too."""
    task_id = await check_visible(request, task_id)
    await server_of(request).client.delete(task_id, cancel=cancel)
    log_transition(request, "deleted", task_id=task_id)


_SAMPLE_AGE = 1.0  # seconds


class PauseTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue or a type; without either, everything."""

    queue: Name | None = None
    type: TypeName | None = None


class TypeRateLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """0 tasks per second removes the limit. Without a type, the limit is for all types together."""

    tasks_per_second: Rate
    type: TypeName | None = None


class LiveTypeLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """0 removes the limit."""

    max_types: Annotated[int, Meta(ge=0, le=10_000)]


class Draining(Struct, frozen=True):
    worker_id: str
    draining: bool


@get("/controls", opt=READ | LIMITED, responses=problems())
async def show_controls(request: Request[Any, Any, Any]) -> ControlsView:
    """What is paused and limited."""
    return await _visible(request, await server_of(request).client.controls.in_force())


@post("/controls/pause", opt=OPERATE | CHECKED, status_code=200, responses=problems(413, 415))
async def pause_tasks(request: Request[Any, Any, Any], data: JSONBody[PauseTarget]) -> ControlsView:
    """Workers start no more tasks of a queue, of a type, or at all. Running tasks continue.

    403 if this would pause tasks outside the limits of the token."""
    _check_inside(request, data.queue, data.type)
    describe_action(request, **_names(data))
    controls = await server_of(request).client.controls.pause(**_names(data))
    log_transition(request, "paused", paused=_names(data))
    return await _visible(request, controls)


@post("/controls/resume", opt=OPERATE | CHECKED, status_code=200, responses=problems(413, 415))
async def resume_tasks(request: Request[Any, Any, Any], data: JSONBody[PauseTarget]) -> ControlsView:
    """End a pause: of a queue, of a type, or of everything."""
    _check_inside(request, data.queue, data.type)
    describe_action(request, **_names(data))
    controls = await server_of(request).client.controls.resume(**_names(data))
    log_transition(request, "resumed", resumed=_names(data))
    return await _visible(request, controls)


@post("/controls/rate-limit", opt=OPERATE | CHECKED, status_code=200, responses=problems(413, 415))
async def limit_rate(request: Request[Any, Any, Any], data: JSONBody[TypeRateLimit]) -> ControlsView:
    """Limit how many tasks each worker starts per second, of one type or in total."""
    _check_inside(request, None, data.type)
    describe_action(request, f"{data.tasks_per_second:g} per second", type=[data.type] if data.type else [])
    controls = await server_of(request).client.controls.limit_rate(data.tasks_per_second, type=data.type)
    log_transition(request, "limited", rate=data.tasks_per_second)
    return await _visible(request, controls)


@post("/controls/max-types", opt=OPERATE | CHECKED, status_code=200, responses=problems(413, 415))
async def limit_types(request: Request[Any, Any, Any], data: JSONBody[LiveTypeLimit]) -> ControlsView:
    """Limit how many types with unfinished tasks a queue can have. Producers apply it within a minute."""
    _check_inside(request, None, None)
    describe_action(request, f"{data.max_types} types")
    controls = await server_of(request).client.controls.limit_types(data.max_types)
    log_transition(request, "limited", max_types=data.max_types)
    return await _visible(request, controls)


@post("/workers/{worker_id:str}/drain", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404))
async def drain_worker(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> Draining:
    """Drain a worker: it claims no more tasks, finishes those it runs, and exits. It reacts within seconds."""
    check_name("worker_id", worker_id)
    await _check_drainable(request, worker_id)
    await server_of(request).client.controls.drain([worker_id])
    log_transition(request, "draining", worker_id=worker_id)
    return Draining(worker_id, True)


async def _check_drainable(request: Request[Any, Any, Any], worker_id: str) -> None:
    client, limits = server_of(request).client, caller_of(request).limits
    if limits.is_whole:
        is_known = await client.engine.read_note(notes.WORKERS + worker_id) is not None
    else:
        is_known = any(worker.worker_id == worker_id for worker in await visible_workers(request))
    if not is_known:
        raise NotFoundException(f"there is no worker {worker_id}")
    if not limits.is_whole:
        note = await client.engine.read_note(notes.WORKERS + worker_id)
        if note is None or not is_inside(notes.decode(note, notes.WorkerNote), limits):
            raise PermissionDeniedException("this worker also serves queues or types outside the limits of this token")


def _check_inside(request: Request[Any, Any, Any], queue: str | None, type: str | None) -> None:
    """A pause affects a queue with all its types, or a type in all queues: all of that must be inside the limits."""
    limits = caller_of(request).limits
    named = [limits.includes_queue(queue)] if queue is not None else []
    named += [limits.includes_type(type)] if type is not None else []
    if not (all(named) if named else limits.is_whole):
        raise PermissionDeniedException("this would affect tasks outside the limits of this token")


async def _visible(request: Request[Any, Any, Any], controls: notes.Controls) -> ControlsView:
    limits = caller_of(request).limits
    if limits.is_whole:
        return controls_view(controls)
    sample = await server_of(request).views.of(limits).sampler.sample(max_age=_SAMPLE_AGE)
    return controls_view(visible_controls(controls, limits, sample.counts))


def _names(target: PauseTarget) -> dict[str, list[str]]:
    return {
        "queues": [] if target.queue is None else [target.queue],
        "types": [] if target.type is None else [target.type],
    }
