"""What all workers obey: pauses, limits, and which of them are to end."""

from typing import Any

from litestar import Request, get, post
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from qo import notes
from qo.model import check_name
from qo.web.access import OPERATE, READ
from qo.web.described import Name, Rate, TypeName
from qo.web.problems import problems
from qo.web.server import server_of, tell


class PausedView(Struct, frozen=True, kw_only=True):
    all: bool
    queues: list[str]
    types: list[str]


class SwitchesView(Struct, frozen=True, kw_only=True):
    """`limit` is how many tasks each worker starts a second, 0 for no limit; `limits` the same by type."""

    paused: PausedView
    limit: float
    limits: dict[str, float]


class Which(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Neither: everything."""

    queue: Name | None = None
    type: TypeName | None = None


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tasks_per_second: Rate  # 0: no limit
    type: TypeName | None = None  # None: all types together


class Draining(Struct, frozen=True):
    worker_id: str
    draining: bool


@get("/switches", opt=READ, responses=problems())
async def show_switches(request: Request[Any, Any, Any]) -> SwitchesView:
    """What is paused and limited."""
    return switches_view(await server_of(request).queue.switches.read())


@post("/switches/pause", opt=OPERATE, status_code=200, responses=problems(413, 415))
async def pause_some(request: Request[Any, Any, Any], data: JSONBody[Which]) -> SwitchesView:
    """Stop workers from starting tasks: of a queue, of a type, or all. What runs goes on."""
    control = await server_of(request).queue.switches.pause(**_which(data))
    tell(request, "paused", paused=_which(data))
    return switches_view(control)


@post("/switches/resume", opt=OPERATE, status_code=200, responses=problems(413, 415))
async def resume_some(request: Request[Any, Any, Any], data: JSONBody[Which]) -> SwitchesView:
    """Undo it: of a queue, of a type, or of everything."""
    control = await server_of(request).queue.switches.resume(**_which(data))
    tell(request, "resumed", resumed=_which(data))
    return switches_view(control)


@post("/switches/rate-limit", opt=OPERATE, status_code=200, responses=problems(413, 415))
async def limit_rate(request: Request[Any, Any, Any], data: JSONBody[Limit]) -> SwitchesView:
    """How many tasks each worker starts a second, of one type or in all."""
    control = await server_of(request).queue.switches.limit_rate(data.tasks_per_second, type=data.type)
    tell(request, "limited", rate=data.tasks_per_second)
    return switches_view(control)


@post("/workers/{worker_id:str}/drain", opt=OPERATE, status_code=200, responses=problems(404))
async def drain_worker(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> Draining:
    """Let a worker end: it takes no more tasks, finishes those it runs, and leaves. It notices within seconds."""
    queue = server_of(request).queue
    check_name("worker_id", worker_id)
    if await queue.engine.read_note(notes.WORKERS + worker_id) is None:
        raise NotFoundException(f"there is no worker {worker_id}")
    await queue.switches.drain([worker_id])
    tell(request, "draining", worker_id=worker_id)
    return Draining(worker_id, True)


def switches_view(control: notes.Control) -> SwitchesView:
    return SwitchesView(
        paused=PausedView(all=control.paused, queues=sorted(control.paused_queues), types=sorted(control.paused_types)),
        limit=control.rate_limit,
        limits=dict(sorted(control.rate_limits.items())),
    )


def _which(data: Which) -> dict[str, list[str]]:
    return {
        "queues": [] if data.queue is None else [data.queue],
        "types": [] if data.type is None else [data.type],
    }
