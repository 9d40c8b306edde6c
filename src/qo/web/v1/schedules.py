"""Schedules: list, show, add, pause, resume, run and remove them."""

from typing import Annotated, Any, Literal

from litestar import Request, delete, get, post, put
from litestar.exceptions import PermissionDeniedException
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from qo.client import describe
from qo.client.schedules import read_or_none
from qo.codec import encode_value
from qo.errors import ScheduleNotFound
from qo.model import MAX_RETRIES, TIMEOUT, LevelWord, check_name
from qo.schedules.document import ScheduleDocument, document_of
from qo.schedules.schedule import CatchUp, Overlap
from qo.schedules.view import ScheduleInfo
from qo.web.http.access import ADMIN, CHECKED, HIDDEN, LIMITED, OPERATE, READ, caller_of
from qo.web.http.action_recorder import describe_action
from qo.web.http.openapi import Name, TypeName
from qo.web.http.problems import problems
from qo.web.http.server import log_transition, server_of
from qo.web.http.visibility import check_may_submit

_Seconds = Annotated[float, Meta(ge=0, le=3_200_000_000)]
_Time = Annotated[str, Meta(max_length=64)]
_Level = Annotated[int, Meta(ge=0, le=9)]


class NewSchedule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule: either `cron` in a `timezone`, or `every` as a number of seconds. Times are in ISO 8601."""

    type: TypeName
    payload: Any = {}
    queue: Name = "default"
    priority: LevelWord | _Level = "medium"
    timeout: _Seconds = TIMEOUT
    max_retries: Annotated[int, Meta(ge=0, le=10_000)] = MAX_RETRIES
    needs: list[Name] = []
    cron: Annotated[str, Meta(max_length=256)] | None = None
    every: _Seconds | None = None
    timezone: Annotated[str, Meta(max_length=64)] = "UTC"
    start_at: _Time | None = None
    end_at: _Time | None = None
    jitter: _Seconds = 0.0
    catch_up: CatchUp = "last"
    catch_up_window: _Seconds | None = None
    overlap: Overlap = "allow"


class ScheduleList(Struct, frozen=True, kw_only=True):
    """All schedules by name."""

    schedules: list[ScheduleDocument]


class StartedRun(Struct, frozen=True, kw_only=True):
    """The task that was submitted."""

    name: str
    task_id: str


class RemovedSchedule(Struct, frozen=True, kw_only=True):
    name: str
    removed: Literal[True] = True


@get("/schedules", opt=READ | LIMITED, responses=problems())
async def list_schedules(request: Request[Any, Any, Any]) -> ScheduleList:
    """All schedules with their next five fire times and their last results."""
    limits = caller_of(request).limits
    found = await server_of(request).client.schedules.list()
    return ScheduleList(schedules=[document_of(each) for each in found if limits.includes_task(each.schedule.task)])


@get("/schedules/{name:str}", opt=READ | HIDDEN, responses=problems(404))
async def show_schedule(request: Request[Any, Any, Any], name: FromPath[str]) -> ScheduleDocument:
    """One schedule, with its next five fire times and its last results."""
    return document_of(await _visible(request, name))


@put("/schedules/{name:str}", opt=ADMIN | CHECKED, status_code=200, responses=problems(413, 415))
async def add_schedule(
    request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[NewSchedule]
) -> ScheduleDocument:
    """Add a schedule, or change one that was added before. A schedule that is declared in code is changed there."""
    client = server_of(request).client
    check_name("name", name)
    new = describe(
        client.settings,
        data.type,
        encode_value(data.payload),
        queue=data.queue,
        priority=data.priority,  # type: ignore[arg-type]  # checked by its type
        timeout=data.timeout,
        max_retries=data.max_retries,
        needs=data.needs,
    )
    check_may_submit(request, [new])
    existing = await read_or_none(client.engine, name)
    if existing is not None and not caller_of(request).limits.includes_task(existing.schedule.task):
        raise PermissionDeniedException("another schedule has this name")
    describe_action(request, schedule=[name]).verb = "schedule.add"
    info = await client.schedules.add(
        name,
        task=new,
        cron=data.cron,
        every=data.every,
        timezone=data.timezone,
        start_at=data.start_at,
        end_at=data.end_at,
        jitter=data.jitter,
        catch_up=data.catch_up,
        catch_up_window=data.catch_up_window,
        overlap=data.overlap,
    )
    log_transition(request, "scheduled", schedule=name)
    return document_of(info)


@post("/schedules/{name:str}/pause", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404))
async def pause_schedule(request: Request[Any, Any, Any], name: FromPath[str]) -> ScheduleDocument:
    """Submit no tasks of a schedule until it is resumed."""
    await _visible(request, name)
    describe_action(request, schedule=[name]).verb = "schedule.pause"
    return document_of(await server_of(request).client.schedules.pause(name))


@post("/schedules/{name:str}/resume", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404))
async def resume_schedule(request: Request[Any, Any, Any], name: FromPath[str]) -> ScheduleDocument:
    """Let a paused schedule submit tasks again. Fire times during the pause are not caught up."""
    await _visible(request, name)
    describe_action(request, schedule=[name]).verb = "schedule.resume"
    return document_of(await server_of(request).client.schedules.resume(name))


@post("/schedules/{name:str}/run", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404))
async def run_schedule(request: Request[Any, Any, Any], name: FromPath[str]) -> StartedRun:
    """Submit a task of a schedule now, whether or not the schedule is paused."""
    await _visible(request, name)
    action = describe_action(request, schedule=[name])
    action.verb = "schedule.run"
    task_id = await server_of(request).client.schedules.run(name)
    action.task_ids = [task_id]
    return StartedRun(name=name, task_id=task_id)


@delete("/schedules/{name:str}", opt=ADMIN | HIDDEN, status_code=200, responses=problems(404))
async def remove_schedule(request: Request[Any, Any, Any], name: FromPath[str]) -> RemovedSchedule:
    """Delete a schedule. Its tasks stay. A schedule that is declared in code is removed there."""
    if not caller_of(request).limits.is_whole:
        await _visible(request, name)
    describe_action(request, schedule=[name]).verb = "schedule.remove"
    await server_of(request).client.schedules.remove(name)
    return RemovedSchedule(name=name)


async def _visible(request: Request[Any, Any, Any], name: str) -> ScheduleInfo:
    """The schedule. Raises ScheduleNotFound if there is none, or its task is outside the limits of the caller."""
    try:
        check_name("name", name)
    except Exception as error:
        raise _not_found(name) from error
    info = await server_of(request).client.schedules.get(name)
    if not caller_of(request).limits.includes_task(info.schedule.task):
        raise _not_found(name)
    return info


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule is called {name!r:.80}; `qo schedules list` shows all")
