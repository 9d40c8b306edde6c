"""Actions on tasks, by id or by filter, a few thousand tasks per request."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

import msgspec
from litestar import Request, post
from litestar.exceptions import PermissionDeniedException
from litestar.params import JSONBody
from msgspec import Meta, Struct
from msgspec.structs import replace

from qo.client import Client
from qo.client.describe import Priority, parse_instant
from qo.engine import Engine
from qo.errors import InvalidTask
from qo.model import (
    FINISHED,
    Change,
    Filter,
    Guard,
    PendingKind,
    Status,
    Task,
    archive,
    cancel,
    replay,
    replay_finished,
    run_now,
    withdraw,
)
from qo.model.change import STATUSES
from qo.web.callers import AccessLimits, Scope
from qo.web.dashboard_api.search import Search, TaskFilter, find, search_of
from qo.web.dashboard_api.views import statuses
from qo.web.http.access import ADMIN, LIMITED, OPERATE, caller_of, put_caller
from qo.web.http.action_recorder import RequestedAction, describe_action
from qo.web.http.problems import problems
from qo.web.http.server import known_id, log_transition, server_of
from qo.web.http.visibility import visible

MAX_TASKS = 10_000  # per request
_BATCH_SIZE = 500
_MAX_REASONS = 20  # refused tasks that are read to give a reason

Action = Literal[
    "replay",
    "replay_completed",
    "archive",
    "cancel",
    "delete",
    "run_now",
    "reschedule",
    "priority",
    "cancel_and_delete",
]


class ActionKind(Struct, frozen=True):
    change: Callable[[str], Change] | None  # None: delete
    takes: frozenset[Status]
    deletes: bool = False  # after the change
    pending: tuple[PendingKind, ...] = ()  # only these kinds of pending tasks
    verb: str = ""  # in the audit trail, if it is not the name of the action


KINDS: dict[Action, ActionKind] = {
    "replay": ActionKind(replay, STATUSES[Guard.REPLAYABLE]),
    "archive": ActionKind(archive, STATUSES[Guard.ENDED]),
    "cancel": ActionKind(cancel, STATUSES[Guard.UNFINISHED]),
    "delete": ActionKind(None, FINISHED, deletes=True),
    "replay_completed": ActionKind(replay_finished, FINISHED, verb="replay"),
    "run_now": ActionKind(
        run_now, STATUSES[Guard.NOT_DUE], pending=(PendingKind.SCHEDULED, PendingKind.RETRYING), verb="run-now"
    ),
    "reschedule": ActionKind(None, STATUSES[Guard.WAITING]),
    "priority": ActionKind(None, STATUSES[Guard.WAITING]),
    "cancel_and_delete": ActionKind(withdraw, FINISHED | {Status.PENDING}, deletes=True, verb="delete"),
}


class Act(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either `ids` or `filter`. With a filter, `after` is the `next` of the previous response. `reschedule` needs
    `run_at` (ISO 8601), `priority` needs `priority`."""

    action: Action
    ids: Annotated[list[str], Meta(max_length=MAX_TASKS)] | None = None
    filter: TaskFilter | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_TASKS)] = 1000
    after: str = ""
    run_at: str | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None


class Refusal(Struct, frozen=True):
    id: str
    why: str


class Acted(Struct, frozen=True, kw_only=True):
    """The number of changed tasks, the refused tasks, and `next` if more tasks may match."""

    done: int
    refused: list[Refusal]
    next: str | None = None


class Cleanup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    older_than: Annotated[float, Meta(ge=0, le=3_200_000_000)]  # seconds since the end of the task
    status: Annotated[list[Literal["completed", "failed", "cancelled", "archived"]], Meta(min_length=1)]


class Cleaned(Struct, frozen=True):
    deleted: int


@post("/act", opt=OPERATE | LIMITED | {"note": "deleting needs `admin`"}, status_code=200, responses=problems(413, 415))
async def act(request: Request[Any, Any, Any], data: JSONBody[Act]) -> Acted:
    """Replay, archive, cancel, delete, run now, reschedule or prioritise tasks: those with the given ids, or up to
    `limit` matching ones, newest first.

    Deleting needs the scope `admin`."""
    client = server_of(request).client
    kind = _kind(client, data)
    if kind.deletes:
        admin = caller_of(request).within(Scope.ADMIN)
        if admin is None:
            raise PermissionDeniedException("deleting needs a token with the scope admin")
        put_caller(request, admin)  # the limits of the scope admin apply from here on
    if (data.ids is None) == (data.filter is None):
        raise InvalidTask("ids", "send either ids or a filter")
    action = describe_action(request, _in_words(data.filter))
    action.verb = kind.verb or data.action
    if data.ids is not None:
        acted = await _change_named(request, kind, list(dict.fromkeys(known_id(each) for each in data.ids)), action)
    else:
        acted = await _change_matching(client, kind, data, caller_of(request).limits, action)
    log_transition(request, data.action, number=acted.done)
    return acted


def _kind(client: Client, data: Act) -> ActionKind:
    """The action with its new time or priority. Raises InvalidTask."""
    kind = KINDS[data.action]
    for action, field in (("reschedule", "run_at"), ("priority", "priority")):
        if (data.action == action) != (getattr(data, field) is not None):
            raise InvalidTask(field, f"is required for the action {action}, and for no other")
    if data.run_at is not None:
        return replace(kind, change=client.reschedule_change(parse_instant("run_at", data.run_at)))
    if data.priority is not None:
        return replace(kind, change=client.priority_change(cast("Priority", data.priority)))
    return kind


@post("/cleanup", opt=ADMIN | LIMITED, status_code=200, responses=problems(413, 415))
async def clean(request: Request[Any, Any, Any], data: JSONBody[Cleanup]) -> Cleaned:
    """Delete tasks that finished longer ago than `older_than` seconds."""
    ended = Filter(statuses=tuple(Status(word) for word in data.status), finished_for=data.older_than)
    where = caller_of(request).limits.narrow(ended)
    action = describe_action(request, f"older than {data.older_than:g} s", status=data.status)
    action.verb = "delete"
    deleted = 0 if where is None else await server_of(request).client.delete_all(where, progress=action.count)
    log_transition(request, "deleted", number=deleted)
    return Cleaned(deleted)


def _in_words(given: TaskFilter | None) -> str:
    """The fields of the filter that are set."""
    fields = msgspec.to_builtins(given or TaskFilter())
    return ", ".join(
        f"{name} {' '.join(value) if isinstance(value, list) else value}"
        for name, value in fields.items()
        if value not in ([], "", None)
    )


async def _change_named(
    request: Request[Any, Any, Any], kind: ActionKind, ids: list[str], action: RequestedAction
) -> Acted:
    seen: set[str] = set()
    for start in range(0, len(ids), _BATCH_SIZE):
        seen |= await visible(request, ids[start : start + _BATCH_SIZE])
    acted = await change(server_of(request).client, kind, [each for each in ids if each in seen], action)
    unseen = [Refusal(each, _why(None, kind)) for each in ids if each not in seen]
    return replace(acted, refused=acted.refused + unseen)


async def _change_matching(
    client: Client, kind: ActionKind, data: Act, limits: AccessLimits, action: RequestedAction
) -> Acted:
    given = data.filter or TaskFilter()
    fit = [status for status in statuses(given.status)[0] if status in kind.takes]
    if not fit:
        return Acted(done=0, refused=[])
    query = search_of(given, limits)
    query = replace(query, where=replace(query.where, statuses=tuple(fit), pending=query.where.pending or kind.pending))
    ids, following = await _matching(client.engine, query, data)
    acted = await change(client, kind, ids, action)
    return replace(acted, next=following)


async def _matching(engine: Engine, query: Search, data: Act) -> tuple[list[str], str | None]:
    """All matching ids, before the first task changes: a changed task could match again."""
    ids: list[str] = []
    after: str | None = data.after
    while after is not None and len(ids) < data.limit:
        found = await find(engine, query, limit=min(_BATCH_SIZE, data.limit - len(ids)), after=after)
        ids += [task.id for task in found.tasks if task.status in query.where.statuses]
        after = found.next
        if not found.tasks:
            break  # thousands were read and none matches: continue in the next request
    return ids, after


async def change(client: Client, kind: ActionKind, ids: list[str], action: RequestedAction) -> Acted:
    done, refused = 0, list[str]()
    for start in range(0, len(ids), _BATCH_SIZE):
        some = ids[start : start + _BATCH_SIZE]
        answers = [] if kind.change is None else await client.apply([kind.change(each) for each in some])
        if kind.deletes:
            answers = await client.engine.delete(some)
        action.add(some, answers)
        done += sum(answers)
        refused += [each for each, done_ in zip(some, answers, strict=True) if not done_]
    read = await client.engine.get_without_values(refused[:_MAX_REASONS]) if refused else []
    reasons = [Refusal(each, _why(task, kind)) for each, task in zip(refused, read, strict=False)]
    return Acted(done=done, refused=reasons + [Refusal(each, "refused") for each in refused[_MAX_REASONS:]])


def _why(task: Task | None, kind: ActionKind) -> str:
    if task is None:
        return "there is no such task"
    if task.status in kind.takes:
        return "the task is already due"
    return f"the task is {task.status}; allowed: {', '.join(sorted(kind.takes))}"
