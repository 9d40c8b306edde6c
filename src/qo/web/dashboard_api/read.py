"""Read: the session, tasks, one task and its history, workers, one workflow."""

from typing import Annotated, Any, Literal

from litestar import Request, get
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from qo import __version__
from qo.codec import shown_text
from qo.model import Task
from qo.web.callers import Caller, Scope
from qo.web.dashboard_api.search import Search, TaskFilter, count, find, find_sorted, search_of
from qo.web.dashboard_api.views import (
    FilterWord,
    StatusWord,
    TaskDocument,
    WorkerDocument,
    brief,
    documents,
    whole,
    worker_document,
    workflow_of,
)
from qo.web.dashboard_api.workflow_graph import DrawnWorkflow, draw
from qo.web.http.access import HIDDEN, LIMITED, READ, caller_of
from qo.web.http.byte_budget import copies_within, history_within
from qo.web.http.problems import problems
from qo.web.http.server import Server, server_of
from qo.web.http.visibility import found, visible_workers

MAX_PAGE_SIZE = 200

Sort = Literal["newest", "updated", "rank", "available", "failures", "attempts"]


class Abilities(Struct, frozen=True, kw_only=True):
    write: bool
    delete: bool
    controls: bool
    drain: bool
    shards: bool
    audit: bool
    workflows: bool  # show them
    change_workflows: bool


class Session(Struct, frozen=True, kw_only=True):
    """What the caller can do, and for which queues and types; empty means all."""

    title: str
    version: str
    scopes: list[Scope]
    queues: list[str]
    types: list[str]
    can: Abilities
    user: str | None  # a logged-in user
    csrf_token: str | None  # sent with every action of a logged-in user


class DashboardPage(Struct, frozen=True, kw_only=True):
    """`next` is the value of `after` for the next page. `searched` is how many tasks were read for a search, `window`
    how many of the newest matching tasks were sorted. `total` is null if it would have to be counted."""

    tasks: list[TaskDocument]
    next: str | None
    total: int | None
    searched: int | UnsetType = UNSET
    window: int | UnsetType = UNSET


class EventDocument(Struct, frozen=True, kw_only=True):
    """A transition. `task` is the task at that time, with the fields that are known."""

    version: int
    at: str
    status: StatusWord
    attempt: int
    failures: int
    worker_id: str | None
    error: str | None
    available_at: str
    log: str | None  # the last log lines of the attempt that this transition ended
    task: dict[str, Any] | None


class Events(Struct, frozen=True, kw_only=True):
    id: str
    events: list[EventDocument]


class DashboardWorkers(Struct, frozen=True, kw_only=True):
    workers: list[WorkerDocument]


@get("/session", opt=READ | LIMITED, responses=problems())
async def show_session(request: Request[Any, Any, Any]) -> Session:
    """The caller and its permissions."""
    server = server_of(request)
    caller = caller_of(request)
    operate = caller.may_somewhere(Scope.OPERATE)
    can = Abilities(
        write=operate,
        delete=caller.may_somewhere(Scope.ADMIN),
        controls=operate,
        drain=operate,
        shards=bool(server.client.engine.shards),
        audit=_is_unlimited(caller, Scope.ADMIN),
        workflows=_is_unlimited(caller, Scope.READ),
        change_workflows=_is_unlimited(caller, Scope.OPERATE),
    )
    return Session(
        title=server.settings.title,
        version=__version__,
        scopes=sorted(caller.scopes.union(*(role.scopes for role in caller.limited_roles))),
        queues=sorted(caller.limits.queues),
        types=sorted(caller.limits.types),
        can=can,
        user=caller.name if caller.kind == "user" else None,
        csrf_token=None if server.login is None else server.login.csrf_token(request, caller),
    )


def _is_unlimited(caller: Caller, scope: Scope) -> bool:
    role = caller.within(scope)
    return role is not None and role.limits.is_whole


@get("/tasks", opt=READ | LIMITED, responses=problems())
async def list_documents(
    *,
    request: Request[Any, Any, Any],
    status: FromQuery[list[FilterWord] | None] = None,
    type: FromQuery[list[str] | None] = None,
    queue: FromQuery[list[str] | None] = None,
    worker: FromQuery[str | None] = None,
    batch: FromQuery[str | None] = None,
    priority: Annotated[int | None, QueryParameter(ge=0, le=9)] = None,
    text: FromQuery[str] = "",
    shard: FromQuery[str] = "",
    sort: FromQuery[Sort] = "newest",
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE_SIZE)] = 50,
    after: FromQuery[str] = "",
) -> DashboardPage:
    """Tasks that match all filters; without a status, all except archived ones. `text` is searched, ignoring case, in
    the id, type, queue, worker, idempotency key, trace id, needs, payload and error."""
    server = server_of(request)
    engine, now = server.client.engine, server.clock()
    given = TaskFilter(
        status=status or [],
        type=type or [],
        queue=queue or [],
        worker=worker,
        batch=batch,
        priority=priority,
        text=text,
        shard=shard,
    )
    query = search_of(given, caller_of(request).limits)
    total = await _total(server, query) if query.counted else None
    if sort == "newest":
        page = await find(engine, query, limit=limit, after=after)
        searched = UNSET if query.counted else page.searched
        shown = await _briefs(server, page.tasks, now)
        return DashboardPage(tasks=shown, next=page.next, total=total, searched=searched)
    ordered = await find_sorted(engine, query, sort, limit=limit, now=now, after=after)
    window = UNSET if ordered.window is None else ordered.window
    return DashboardPage(tasks=await _briefs(server, ordered.tasks, now), next=ordered.next, total=total, window=window)


async def _total(server: Server, query: Search) -> int:
    batch = query.where.batch
    return count(await (server.client.engine.count() if batch is None else server.batches.counts(batch)), query)


async def _briefs(server: Server, tasks: list[Task], now: float) -> list[TaskDocument]:
    unhandled = await server.unhandled.ids(tasks)
    return [brief(task, now, unhandled=task.id in unhandled) for task in tasks]


@get("/tasks/{task_id:str}", opt=READ | HIDDEN, responses=problems(404))
async def show_document(request: Request[Any, Any, Any], task_id: FromPath[str]) -> TaskDocument:
    """A task with its payload and result."""
    server = server_of(request)
    task = await found(request, task_id)
    shown = whole(task, server.clock(), unhandled=task.id in await server.unhandled.ids([task]))
    return replace(shown, workflow=workflow_of(task))


@get("/tasks/{task_id:str}/history", opt=READ | HIDDEN, responses=problems(404))
async def show_versions(request: Request[Any, Any, Any], task_id: FromPath[str]) -> Events:
    """All transitions of a task, oldest first, each with the task at that time.

    Of a very long history, or of a large task, older transitions come without the task and their log."""
    server = server_of(request)
    task = await found(request, task_id)
    events = await history_within(server.client.engine, task.id)
    made = documents(task, events, server.clock())
    first_whole = len(events) - copies_within(task, events)
    return Events(
        id=task.id,
        events=[
            _event(document, event.log, is_whole=at >= first_whole)
            for at, (document, event) in enumerate(zip(made, events, strict=True))
        ],
    )


@get("/workers", opt=READ | LIMITED, responses=problems())
async def list_worker_documents(request: Request[Any, Any, Any]) -> DashboardWorkers:
    """All registered workers, including stale ones. A limited token sees the workers for its queues and types."""
    server = server_of(request)
    now, silent = server.clock(), server.settings.dead_after
    workers = sorted(await visible_workers(request), key=lambda worker: worker.worker_id)
    return DashboardWorkers(workers=[worker_document(worker, now, silent) for worker in workers])


@get("/workflows/{workflow_id:str}", opt=READ, responses=problems(404))
async def draw_workflow(request: Request[Any, Any, Any], workflow_id: FromPath[str]) -> DrawnWorkflow:
    """One workflow as a graph: boxes in layers, lines between them, the critical path, and a table of its tasks."""
    server = server_of(request)
    return draw(await server.client.workflows.read(workflow_id), server.clock())


def _event(document: dict[str, Any], log: str | None, *, is_whole: bool) -> EventDocument:
    same = ("version", "status", "attempt", "failures", "worker_id", "error", "available_at")
    known = {name: document[name] for name in same}
    shown = None if log is None else shown_text(log)
    return EventDocument(at=document["updated_at"], log=shown, task=document if is_whole else None, **known)
