"""Actions on all tasks that match a filter: replay, cancel, archive, delete, run now, reschedule, priority.

Each of them must name a status, type, queue or batch, except the replay of tasks that did not succeed.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from litestar import Request, post
from litestar.params import JSONBody
from msgspec import Struct, field
from msgspec.structs import replace

from qo import model
from qo.client.describe import Priority
from qo.clock import iso
from qo.errors import InvalidTask
from qo.model import Change, Filter, PendingKind, Task, check_batch_id
from qo.web.http.access import ADMIN, LIMITED, OPERATE, caller_of
from qo.web.http.action_recorder import describe_action
from qo.web.http.bulk_change import BulkLimit, Changed, change_tasks, choose_tasks
from qo.web.http.openapi import BatchName, Name, Seconds, TypeName
from qo.web.http.problems import problems
from qo.web.http.server import server_of
from qo.web.task_words import Word, task_word
from qo.web.v1.actions import PriorityLevel, new_time
from qo.web.v1.read import filter_of

_ENDED: list[Word] = ["completed", "failed", "dead_letter", "cancelled"]
_REPLAYABLE: list[Word] = ["failed", "dead_letter", "cancelled"]  # by default; completed tasks must be requested
_LATER = (PendingKind.SCHEDULED, PendingKind.RETRYING)


class MatchingTasks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to change: those that match all fields. An empty list means all that the action can change.

    `after`: the `next` of the last response, to continue after the tasks that it changed.
    """

    status: list[Word] = []
    type: list[TypeName] = []
    queue: list[Name] = []
    batch: BatchName | None = None
    limit: BulkLimit = 1000
    after: str = ""


class ReplayFilter(MatchingTasks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to replay. An empty list means all. Completed tasks are replayed only if `status` names them."""

    status: list[Word] = field(default_factory=lambda: list(_REPLAYABLE))


class RescheduleFilter(MatchingTasks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to reschedule, and either an ISO 8601 time, or seconds from now."""

    run_at: str | None = None
    delay_seconds: Seconds | None = None


class PriorityFilter(MatchingTasks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to move, and their new priority: 0 to 9, lower first, or a level."""

    priority: PriorityLevel


class Replayed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`more`: further tasks match; repeat the request with `next` as its `after`."""

    replayed: int
    more: bool
    next: str | None = None


class _BulkAction(Struct, frozen=True, kw_only=True):
    transition: str  # in the log, from which the audit trail takes its verb
    change: Callable[[str], Change] | None  # None: delete
    words: Sequence[Word]  # the statuses that it can change
    pending: tuple[PendingKind, ...] = ()


@post("/tasks/replay", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def replay_tasks(request: Request[Any, Any, Any], data: JSONBody[ReplayFilter]) -> Replayed:
    """Replay the matching tasks, newest first, up to `limit`."""
    change, words = (model.replay_finished, _ENDED) if "completed" in data.status else (model.replay, _REPLAYABLE)
    done = await _act(request, data, _BulkAction(transition="replayed", change=change, words=words))
    return Replayed(replayed=done.changed, more=done.more, next=done.next)


@post("/tasks/cancel", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def cancel_tasks(request: Request[Any, Any, Any], data: JSONBody[MatchingTasks]) -> Changed:
    """Cancel the matching tasks that are queued or executing, newest first, up to `limit`. Name a status, type, queue
    or batch."""
    _check_narrow(data)
    words: list[Word] = ["queued", "executing"]
    return await _act(request, data, _BulkAction(transition="cancelled", change=model.cancel, words=words))


@post("/tasks/archive", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def archive_tasks(request: Request[Any, Any, Any], data: JSONBody[MatchingTasks]) -> Changed:
    """Archive the matching finished tasks, newest first, up to `limit`. Name a status, type, queue or batch."""
    _check_narrow(data)
    return await _act(request, data, _BulkAction(transition="archived", change=model.archive, words=_ENDED))


@post("/tasks/delete", opt=ADMIN | LIMITED, status_code=200, responses=problems(413, 415))
async def delete_tasks(request: Request[Any, Any, Any], data: JSONBody[MatchingTasks]) -> Changed:
    """Delete the matching finished tasks, newest first, up to `limit`. Name a status, type, queue or batch."""
    _check_narrow(data)
    return await _act(request, data, _BulkAction(transition="deleted", change=None, words=_ENDED))


@post("/tasks/run-now", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def run_tasks_now(request: Request[Any, Any, Any], data: JSONBody[MatchingTasks]) -> Changed:
    """Make the matching scheduled and retrying tasks due now, up to `limit`. Name a
    status, type, queue or batch."""
    _check_narrow(data)
    action = _BulkAction(transition="run-now", change=model.run_now, words=["queued"], pending=_LATER)
    return await _act(request, data, action)


@post("/tasks/reschedule", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def reschedule_tasks(request: Request[Any, Any, Any], data: JSONBody[RescheduleFilter]) -> Changed:
    """Change when the matching queued tasks become due, up to `limit`. A time in the past means now. Name a
    status, type, queue or batch."""
    server = server_of(request)
    at = new_time(data.run_at, data.delay_seconds, server.clock())
    _check_narrow(data)
    change = server.client.reschedule_change(at)
    action = _BulkAction(transition="rescheduled", change=change, words=["queued"])
    return await _act(request, data, action, f"to {iso(at)}")


@post("/tasks/priority", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def prioritise_tasks(request: Request[Any, Any, Any], data: JSONBody[PriorityFilter]) -> Changed:
    """Change the priority of the matching queued tasks, up to `limit`. Name a status, type, queue or batch."""
    _check_narrow(data)
    change = server_of(request).client.priority_change(cast("Priority", data.priority))
    action = _BulkAction(transition="priority", change=change, words=["queued"])
    return await _act(request, data, action, f"to {data.priority}")


def _check_narrow(data: MatchingTasks) -> None:
    """Raise for a filter that matches every task: the former times, priorities and statuses are not kept."""
    if not (data.status or data.type or data.queue or data.batch):
        raise InvalidTask("status", "name a status, type, queue or batch: this request would affect every task")


async def _act(request: Request[Any, Any, Any], data: MatchingTasks, action: _BulkAction, target: str = "") -> Changed:
    client, change = server_of(request).client, action.change
    words = set(data.status or action.words) & set(action.words)
    where = _filter(data, action, words)
    chosen = await choose_tasks(
        client.engine,
        None if where is None else caller_of(request).limits.narrow(where),
        lambda task: task_word(task) in words,
        limit=data.limit,
        after=data.after,
    )

    async def write(tasks: Sequence[Task]) -> list[bool]:
        if change is None:
            return await client.engine.delete([task.id for task in tasks])
        return await client.apply([change(task.id) for task in tasks])

    batch = [] if data.batch is None else [data.batch]
    recorded = describe_action(request, target, status=data.status, type=data.type, queue=data.queue, batch=batch)
    return await change_tasks(request, chosen, write, recorded=recorded, transition=action.transition)


def _filter(given: MatchingTasks, action: _BulkAction, words: set[Word]) -> Filter | None:
    """None: no task has one of these statuses that the action can change."""
    requested = filter_of(sorted(words), given.type, given.queue)
    batch = None if given.batch is None else check_batch_id("batch", given.batch)
    return replace(requested, batch=batch, pending=action.pending) if words else None
