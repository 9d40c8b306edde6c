"""Actions on all tasks that match a filter: retry, cancel, delete, run now, reschedule, priority."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, cast

from litestar import Request, post
from litestar.params import JSONBody
from msgspec import Meta, Struct
from msgspec.structs import replace

from qo import model
from qo.client import Client
from qo.client.describe import Priority, parse_instant
from qo.errors import InvalidTask, StorageError
from qo.model import (
    FINISHED,
    UNFINISHED,
    Change,
    Filter,
    PendingKind,
    Status,
    Task,
    check_batch_id,
    check_types,
    is_retrying,
)
from qo.web.http.access import ADMIN, LIMITED, OPERATE, caller_of
from qo.web.http.action_recorder import RequestedAction, describe_action
from qo.web.http.bulk_change import BulkLimit, Changed, change_tasks, choose_tasks
from qo.web.http.openapi import BatchName, TypeName
from qo.web.http.problems import problems
from qo.web.http.server import server_of
from qo.web.management.views import Word, filter_of, word

_PENDING = frozenset({Status.PENDING})
_LATER = (PendingKind.SCHEDULED, PendingKind.RETRYING)


class ManagedFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to change: those that match all fields. An empty list means all that the action can change.

    `after`: the `next` of the last response, to continue after the tasks that it changed.
    """

    status: list[Word] = []
    type: list[TypeName] = []
    batch: BatchName | None = None
    limit: BulkLimit = 1000
    after: str = ""


class ManagedTimeFilter(ManagedFilter, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which tasks to reschedule, and an ISO 8601 time. A time in the past means now."""

    run_at: str


class ManagedPriorityFilter(ManagedFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to move, and their new priority: 0 to 9, lower first."""

    priority: Annotated[int, Meta(ge=0, le=9)]


class _ManagedAction(Struct, frozen=True, kw_only=True):
    transition: str  # in the log, from which the audit trail takes its verb
    change: Callable[[Task], Change] | None  # None: delete
    words: frozenset[Word]  # the statuses that it can change, as this API names them
    statuses: frozenset[Status]
    pending: tuple[PendingKind, ...] = ()


@post("/retry", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def retry_matching(request: Request[Any, Any, Any], data: JSONBody[ManagedFilter]) -> Changed:
    """Retry the matching failed tasks now and reset their attempts, newest first, up to `limit`. Completed tasks are
    retried only if `status` names them; they lose their results."""
    takes_completed = "completed" in data.status
    words: frozenset[Word] = frozenset({"failed", "completed"} if takes_completed else {"failed"})
    replay = model.replay_finished if takes_completed else model.replay

    def retry(task: Task) -> Change:
        return (model.retry_now if is_retrying(task) else replay)(task.id)

    action = _ManagedAction(transition="retried", change=retry, words=words, statuses=frozenset(Status))
    return await _act(request, data, action)


@post("/cancel", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def cancel_matching(request: Request[Any, Any, Any], data: JSONBody[ManagedFilter]) -> Changed:
    """Cancel the matching unfinished tasks, newest first, up to `limit`. Name a status, type or batch."""
    _check_narrow(data)
    words: frozenset[Word] = frozenset({"pending", "processing", "failed"})
    change = _by_id(model.cancel)
    action = _ManagedAction(transition="cancelled", change=change, words=words, statuses=UNFINISHED)
    return await _act(request, data, action)


@post("/delete", opt=ADMIN | LIMITED, status_code=200, responses=problems(413, 415))
async def delete_matching(request: Request[Any, Any, Any], data: JSONBody[ManagedFilter]) -> Changed:
    """Delete the matching completed and failed tasks, newest first, up to `limit`. Name a status, type or batch."""
    _check_narrow(data)
    words: frozenset[Word] = frozenset({"completed", "failed"})
    action = _ManagedAction(transition="deleted", change=None, words=words, statuses=FINISHED | _PENDING)
    return await _act(request, data, action)


@post("/run-now", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def run_matching_now(request: Request[Any, Any, Any], data: JSONBody[ManagedFilter]) -> Changed:
    """Run the matching tasks now that are due later or wait for a retry, up to `limit`. Name a status, type or
    batch."""
    _check_narrow(data)
    return await _act(request, data, _waiting("run-now", model.run_now, _LATER))


@post("/reschedule", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def reschedule_matching(request: Request[Any, Any, Any], data: JSONBody[ManagedTimeFilter]) -> Changed:
    """Let the matching pending tasks run at another time (ISO 8601), up to `limit`. Name a status, type or batch."""
    at = parse_instant("runAt", data.run_at)
    _check_narrow(data)
    change = server_of(request).client.reschedule_change(at)
    return await _act(request, data, _waiting("rescheduled", change), f"to {data.run_at:.40}")


@post("/priority", opt=OPERATE | LIMITED, status_code=200, responses=problems(413, 415))
async def prioritise_matching(request: Request[Any, Any, Any], data: JSONBody[ManagedPriorityFilter]) -> Changed:
    """Change the priority of the matching pending tasks, up to `limit`. Name a status, type or batch."""
    _check_narrow(data)
    change = server_of(request).client.priority_change(cast("Priority", data.priority))
    return await _act(request, data, _waiting("priority", change), f"to {data.priority}")


def _waiting(transition: str, change: Callable[[str], Change], pending: tuple[PendingKind, ...] = ()) -> _ManagedAction:
    """An action on pending tasks. This API shows tasks that wait for a retry as failed."""
    words: frozenset[Word] = frozenset({"pending", "failed"})
    return _ManagedAction(transition=transition, change=_by_id(change), words=words, statuses=_PENDING, pending=pending)


def _by_id(change: Callable[[str], Change]) -> Callable[[Task], Change]:
    return lambda task: change(task.id)


def _check_narrow(data: ManagedFilter) -> None:
    """Raise for a filter that matches every task: the former times, priorities and statuses are not kept."""
    if not (data.status or data.type or data.batch):
        raise InvalidTask("status", "name a status, type or batch: this request would affect every task")


async def _act(
    request: Request[Any, Any, Any], data: ManagedFilter, action: _ManagedAction, target: str = ""
) -> Changed:
    client = server_of(request).client
    words = action.words & set(data.status or action.words)
    where = _filter(data, action, words)
    chosen = await choose_tasks(
        client.engine,
        None if where is None else caller_of(request).limits.narrow(where),
        lambda task: word(task) in words,
        limit=data.limit,
        after=data.after,
    )
    batch = [] if data.batch is None else [data.batch]
    recorded = describe_action(request, target, status=data.status, type=data.type, batch=batch)
    write = _writer(client, action.change, recorded)
    return await change_tasks(request, chosen, write, recorded=recorded, transition=action.transition)


def _filter(data: ManagedFilter, action: _ManagedAction, words: frozenset[Word]) -> Filter | None:
    """None: no task has one of these statuses that the action can change."""
    requested = filter_of(words, check_types("type", data.type))
    statuses = tuple(status for status in requested.statuses if status in action.statuses)
    batch = None if data.batch is None else check_batch_id("batch", data.batch)
    return replace(requested, statuses=statuses, batch=batch, pending=action.pending) if words and statuses else None


def _writer(
    client: Client, change: Callable[[Task], Change] | None, recorded: RequestedAction
) -> Callable[[Sequence[Task]], Awaitable[list[bool]]]:
    async def write(tasks: Sequence[Task]) -> list[bool]:
        if change is not None:
            return await client.apply([change(task) for task in tasks])
        withdrawn = await client.apply([model.withdraw(task.id) for task in tasks if is_retrying(task)])
        try:
            return await client.engine.delete([task.id for task in tasks])
        except StorageError:
            recorded.is_unknown |= any(withdrawn)  # these tasks are cancelled, and not deleted
            raise

    return write
