"""What all workers obey: pauses, limits, and which of them are to end."""

from typing import Annotated, Any

from litestar import Request, get, post
from litestar.exceptions import NotFoundException, PermissionDeniedException
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct
from msgspec.structs import replace

from qo import notes
from qo.model import Counts, check_name
from qo.web.access import CHECKED, HIDDEN, LIMITED, OPERATE, READ, caller_of
from qo.web.action_recorder import describe_action
from qo.web.callers import AccessLimits
from qo.web.openapi_types import Name, Rate, TypeName
from qo.web.problems import problems
from qo.web.server import server_of, tell
from qo.web.task_access import is_inside, visible_workers


class PausedView(Struct, frozen=True, kw_only=True):
    all: bool
    queues: list[str]
    types: list[str]


class SwitchesView(Struct, frozen=True, kw_only=True):
    """`limit` is how many tasks each worker starts a second, 0 for no limit; `limits` the same by type.

    `max_types` is how many types of unfinished tasks a queue may have, 0 for no limit."""

    paused: PausedView
    limit: float
    limits: dict[str, float]
    max_types: int


class Which(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Neither: everything."""

    queue: Name | None = None
    type: TypeName | None = None


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tasks_per_second: Rate  # 0: no limit
    type: TypeName | None = None  # None: all types together


class TypeLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_types: Annotated[int, Meta(ge=0, le=10_000)]  # 0: no limit


class Draining(Struct, frozen=True):
    worker_id: str
    draining: bool


@get("/switches", opt=READ | LIMITED, responses=problems())
async def show_switches(request: Request[Any, Any, Any]) -> SwitchesView:
    """What is paused and limited."""
    return await _as_seen(request, await server_of(request).queue.controls.in_force())


@post("/switches/pause", opt=OPERATE | CHECKED, status_code=200, responses=problems(413, 415))
async def pause_some(request: Request[Any, Any, Any], data: JSONBody[Which]) -> SwitchesView:
    """Stop workers from starting tasks: of a queue, of a type, or all. What runs goes on.

    403 if this would stop tasks that are outside the limits of the token."""
    _check_inside(request, data.queue, data.type)
    describe_action(request, **_which(data))
    control = await server_of(request).queue.controls.pause(**_which(data))
    tell(request, "paused", paused=_which(data))
    return await _as_seen(request, control)


@post("/switches/resume", opt=OPERATE | CHECKED, status_code=200, responses=problems(413, 415))
async def resume_some(request: Request[Any, Any, Any], data: JSONBody[Which]) -> SwitchesView:
    """Undo it: of a queue, of a type, or of everything."""
    _check_inside(request, data.queue, data.type)
    describe_action(request, **_which(data))
    control = await server_of(request).queue.controls.resume(**_which(data))
    tell(request, "resumed", resumed=_which(data))
    return await _as_seen(request, control)


@post("/switches/rate-limit", opt=OPERATE | CHECKED, status_code=200, responses=problems(413, 415))
async def limit_rate(request: Request[Any, Any, Any], data: JSONBody[Limit]) -> SwitchesView:
    """How many tasks each worker starts a second, of one type or in all."""
    _check_inside(request, None, data.type)
    describe_action(request, f"{data.tasks_per_second:g} a second", type=[data.type] if data.type else [])
    control = await server_of(request).queue.controls.limit_rate(data.tasks_per_second, type=data.type)
    tell(request, "limited", rate=data.tasks_per_second)
    return await _as_seen(request, control)


@post("/switches/max-types", opt=OPERATE | CHECKED, status_code=200, responses=problems(413, 415))
async def limit_types(request: Request[Any, Any, Any], data: JSONBody[TypeLimit]) -> SwitchesView:
    """How many types of unfinished tasks a queue may have. Producers heed it within a minute."""
    _check_inside(request, None, None)
    describe_action(request, f"{data.max_types} types")
    control = await server_of(request).queue.controls.limit_types(data.max_types)
    tell(request, "limited", max_types=data.max_types)
    return await _as_seen(request, control)


@post("/workers/{worker_id:str}/drain", opt=OPERATE | HIDDEN, status_code=200, responses=problems(404))
async def drain_worker(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> Draining:
    """Let a worker end: it takes no more tasks, finishes those it runs, and leaves. It notices within seconds."""
    queue = server_of(request).queue
    check_name("worker_id", worker_id)
    await _check_drainable(request, worker_id)
    await queue.controls.drain([worker_id])
    tell(request, "draining", worker_id=worker_id)
    return Draining(worker_id, True)


async def _check_drainable(request: Request[Any, Any, Any], worker_id: str) -> None:
    queue, limits = server_of(request).queue, caller_of(request).limits
    if limits.is_whole:
        is_known = await queue.engine.read_note(notes.WORKERS + worker_id) is not None
    else:
        is_known = any(worker.worker_id == worker_id for worker in await visible_workers(request))
    if not is_known:
        raise NotFoundException(f"there is no worker {worker_id}")
    if not limits.is_whole:
        note = await queue.engine.read_note(notes.WORKERS + worker_id)
        if note is None or not is_inside(notes.decode(note, notes.WorkerNote), limits):
            raise PermissionDeniedException("this worker works for queues or types that this token is not for")


def _check_inside(request: Request[Any, Any, Any], queue: str | None, type: str | None) -> None:
    """A queue is paused with all its types and a type in all queues, so a token must be for all of them."""
    limits = caller_of(request).limits
    named = [limits.includes_queue(queue)] if queue is not None else []
    named += [limits.includes_type(type)] if type is not None else []
    if not (all(named) if named else limits.is_whole):
        raise PermissionDeniedException("this would concern tasks that this token is not for")


async def _as_seen(request: Request[Any, Any, Any], control: notes.Controls) -> SwitchesView:
    limits = caller_of(request).limits
    if limits.is_whole:
        return switches_view(control)
    sample = await server_of(request).views.of(limits).sampler.fresh(1.0)
    return switches_view(switches_seen(control, limits, sample.counts))


def switches_seen(control: notes.Controls, limits: AccessLimits, counts: Counts) -> notes.Controls:
    """Those that concern tasks of the caller. `counts` are its own."""
    if limits.is_whole:
        return control
    queues = limits.queues or {lane.queue for lane in counts}
    types = limits.types or {lane.type for lane in counts}
    return replace(
        control,
        paused_queues=control.paused_queues & queues,
        paused_types=control.paused_types & types,
        rate_limits={type: rate for type, rate in control.rate_limits.items() if type in types},
    )


def switches_view(control: notes.Controls) -> SwitchesView:
    return SwitchesView(
        paused=PausedView(all=control.paused, queues=sorted(control.paused_queues), types=sorted(control.paused_types)),
        limit=control.rate_limit,
        limits=dict(sorted(control.rate_limits.items())),
        max_types=notes.MAX_LIVE_TYPES if control.max_types is None else control.max_types,
    )


def _which(data: Which) -> dict[str, list[str]]:
    return {
        "queues": [] if data.queue is None else [data.queue],
        "types": [] if data.type is None else [data.type],
    }
