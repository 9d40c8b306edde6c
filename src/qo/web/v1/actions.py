"""Actions on tasks: cancel, replay, archive."""

from typing import Annotated, Any

from litestar import Request, delete, post
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct, field

from qo.client import Client
from qo.errors import WrongStatus
from qo.model import Status, cursor, replay
from qo.web.callers import AccessLimits
from qo.web.http.access import HIDDEN, LIMITED, OPERATE, caller_of
from qo.web.http.action_recorder import describe_action
from qo.web.http.openapi import Name
from qo.web.http.problems import problems
from qo.web.http.server import log_transition, server_of
from qo.web.http.visibility import check_visible, found
from qo.web.task_words import Word, task_word
from qo.web.v1.read import filter_of

_PAGE_SIZE = 500
_REPLAYABLE: list[Word] = ["failed", "dead_letter", "cancelled"]


class ChangedTask(Struct, frozen=True, kw_only=True):
    """A task after an action."""

    task_id: str
    status: Word


class ReplayFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to replay. An empty list means all."""

    status: list[Word] = field(default_factory=lambda: list(_REPLAYABLE))
    type: list[Name] = []
    queue: list[Name] = []
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class Replayed(Struct, frozen=True, kw_only=True):
    """`more`: further tasks match; repeat the request for them."""

    replayed: int
    more: bool


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
async def replay_task(request: Request[Any, Any, Any], task_id: FromPath[str]) -> ChangedTask:
    """Run a failed, cancelled or archived task again and reset its retries."""
    client = server_of(request).client
    task_id = await check_visible(request, task_id)
    await client.replay(task_id)
    log_transition(request, "replayed", task_id=task_id)
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


@post("/tasks/replay", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def replay_tasks(request: Request[Any, Any, Any], data: JSONBody[ReplayFilter]) -> Replayed:
    """Replay the matching tasks, newest first, up to `limit`."""
    client = server_of(request).client
    ids, more = await _matching(client, data, caller_of(request).limits)
    action = describe_action(request, status=data.status, type=data.type, queue=data.queue)
    replayed = 0
    for start in range(0, len(ids), _PAGE_SIZE):
        some = ids[start : start + _PAGE_SIZE]
        action.add(some, answers := await client.apply([replay(task_id) for task_id in some]))
        replayed += sum(answers)
    log_transition(request, "replayed", number=replayed)
    return Replayed(replayed=replayed, more=more)


async def _matching(client: Client, given: ReplayFilter, limits: AccessLimits) -> tuple[list[str], bool]:
    """All matching ids, before the first task changes, and whether more tasks match."""
    words = set(given.status) & set(_REPLAYABLE)
    where = limits.narrow(filter_of(sorted(words), given.type, given.queue)) if words else None
    ids: list[str] = []
    after = ""
    while where is not None:
        some = await client.engine.find_without_values(where, limit=_PAGE_SIZE, after=after)
        for task in some:
            if len(ids) == given.limit:
                return ids, True
            if task_word(task) in words:
                ids.append(task.id)
        if len(some) < _PAGE_SIZE:
            break
        after = cursor(some[-1])
    return ids, False
