"""The engine port over HTTP: one POST per call. It gives access to the whole store, including all leases.

Native workers and monitors use the port for claims, settlements, renewals, expiries, registrations and statistics. The
audit trail does not record these. It records cancelled, replayed, archived and deleted tasks, and changed controls.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from litestar import Request, Response, Router, post
from litestar.exceptions import NotFoundException
from msgspec import structs
from msgspec.structs import replace

from qo import notes, wire
from qo.client import Client
from qo.errors import (
    BadBatch,
    Conflict,
    DamagedNote,
    InvalidSetting,
    InvalidTask,
    OutcomeUnknown,
    QoError,
    StorageError,
    is_size_refusal,
)
from qo.model import (
    UNREADABLE,
    Change,
    ClaimRequest,
    Guard,
    Limit,
    NewTask,
    Note,
    Status,
    check_batch_id,
    check_id,
    check_number,
)
from qo.model.change import LEASED
from qo.schedules.schedule_notes import SCHEDULES
from qo.web.callers import Caller, Scope
from qo.web.http.access import ENGINE
from qo.web.http.action_recorder import recorder_of
from qo.web.http.byte_budget import BoundedPage, claim_within, find_within, get_within
from qo.web.http.problems import STORE_AWAY, TOO_LARGE
from qo.web.remote import checks
from qo.web.remote.checks import action_on, name_in, schedule_before
from qo.web.remote.response_cache import answers

_VERBS = {
    (Guard.UNFINISHED, Status.CANCELLED): "cancel",
    (Guard.WAITING, Status.CANCELLED): "cancel",
    (Guard.WAITING, Status.PENDING): "retry",
    (Guard.NOT_DUE, Status.PENDING): "run-now",
    (Guard.WAITING, Status.FAILED): "reject",  # a worker fails tasks of a type that no worker handles
    (Guard.REPLAYABLE, Status.PENDING): "replay",
    (Guard.FINISHED, Status.PENDING): "replay",
    (Guard.ENDED, Status.ARCHIVED): "archive",
}


class PortAction(NamedTuple):
    action: str
    task_ids: list[str]  # those that were changed
    number: int | None  # tasks
    target: str = ""


async def controls_before(client: Client, call: str, arguments: Any) -> notes.Controls | None:
    """The controls before a call that may change them; None if the call does not."""
    if (call == "write_note" and arguments.name == notes.CONTROL) or (
        call == "drop_note" and arguments == notes.CONTROL
    ):
        return await _controls(client)
    return None


async def _controls(client: Client) -> notes.Controls:
    try:
        return await client.controls.read()
    except DamagedNote:
        return notes.Controls()


def actions_in(call: str, arguments: Any, answer: Any, before: notes.Controls | None) -> list[PortAction]:
    """The actions of a call. `answer` is None if the outcome is unknown."""
    if call == "delete":
        return _tasks("delete", arguments, answer)
    if call == "apply":
        return _changes(arguments, answer)
    if before is not None:
        after = notes.Controls() if call == "drop_note" else _written(arguments)
        difference = controls_in_words(before, after)
        return [PortAction("controls", [], None, difference)] if difference else []
    return []


def _changes(changes: list[Change], answer: list[bool] | None) -> list[PortAction]:
    found: dict[str, list[int]] = {}
    for at, change in enumerate(changes):
        if change.guard not in LEASED:
            found.setdefault(_verb(change), []).append(at)
    return [
        action
        for verb, places in found.items()
        for action in _tasks(
            verb, [changes[at].id for at in places], None if answer is None else [answer[at] for at in places]
        )
    ]


def _verb(change: Change) -> str:
    if change.priority is not None:
        return "priority"
    if change.run_at is not None:
        return "reschedule"
    return _VERBS.get((change.guard, change.to), f"make {change.to}")


def _tasks(verb: str, ids: list[str], answer: list[bool] | None) -> list[PortAction]:
    if answer is None:
        return [PortAction(verb, ids, None)] if ids else []
    changed = [each for each, done in zip(ids, answer, strict=True) if done]
    return [PortAction(verb, changed, len(changed))] if changed else []


def _written(arguments: wire.WriteNote) -> notes.Controls:
    try:
        return notes.decode(Note(arguments.name, arguments.data, ""), notes.Controls)
    except DamagedNote:
        return notes.Controls()


def controls_in_words(before: notes.Controls, after: notes.Controls) -> str:
    """The differences as text; empty if only a drained worker removed itself."""
    if structs.replace(before, draining=after.draining) == after and after.draining <= before.draining:
        return ""
    return ", ".join(
        f"{name} {_shown(getattr(before, name))} to {_shown(getattr(after, name))}"
        for name in notes.Controls.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    )


def _shown(value: Any) -> str:
    if isinstance(value, frozenset):
        return " ".join(sorted(value)) or "none"
    if isinstance(value, dict):
        return " ".join(f"{name}={_limit_text(limit)}" for name, limit in sorted(value.items())) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _limit_text(limit: float | Limit) -> str:
    if isinstance(limit, Limit):
        return f"{limit.concurrency}/{limit.rate:g} in {limit.per:g} s"
    return f"{limit:g}"


log = logging.getLogger("qo.web")
RETRY_AFTER = "1"  # seconds until a client should try again if the store is unreachable
_MAX_NAME_LENGTH = 128

Call = Callable[[Client, Any], Awaitable[Any]]


async def _hello(client: Client, _: None) -> wire.Hello:
    now = await client.engine.now()
    try:
        return wire.Hello(version=version("qo-queue"), now=now)
    except PackageNotFoundError:  # run from a source tree
        return wire.Hello(now=now)


async def _add(client: Client, tasks: list[NewTask]) -> Any:
    checks.check_batch(tasks)
    checked = [checks.check_task(task, client.payload_limit) for task in tasks]
    await client.live_types.check(checked)
    return await client.engine.add(checked)


async def _claim(client: Client, request: ClaimRequest) -> Any:
    return await claim_within(client.store, checks.check_claim_request(request))


async def _apply(client: Client, changes: list[Change]) -> Any:
    checks.check_batch(changes)
    return await client.engine.apply([checks.check_change(each, client.payload_limit) for each in changes])


async def _delete(client: Client, ids: list[str]) -> Any:
    checks.check_batch(ids)
    return await client.engine.delete([check_id(task_id) for task_id in ids])


async def _get(client: Client, ids: list[str]) -> Any:
    checks.check_batch(ids)
    return await get_within(client.engine, [check_id(task_id) for task_id in ids])


async def _find(client: Client, arguments: wire.Find) -> Any:
    arguments = checks.check_find(arguments)
    return await find_within(
        client.engine,
        arguments.where,
        limit=arguments.limit,
        after=arguments.after,
        created_before=arguments.created_before,
    )


async def _count(client: Client, batch: str | None) -> Any:
    return await client.engine.count(None if batch is None else check_batch_id("batch", batch))


async def _history(client: Client, task_id: str) -> Any:
    return await client.engine.history(check_id(task_id))


async def _wait(client: Client, arguments: wire.Wait) -> None:
    check_number("timeout", arguments.timeout)
    await client.engine.wait(checks.check_claim_request(arguments.request), min(arguments.timeout, wire.LONGEST_WAIT))


async def _read_note(client: Client, name: str) -> Any:
    return await client.engine.read_note(checks.check_note(name))


async def _write_note(client: Client, arguments: wire.WriteNote) -> str:
    name = checks.check_written_note(arguments.name, arguments.data)
    return await client.engine.write_note(name, arguments.data, expected=checks.check_version(arguments.expected))


async def _notes(client: Client, prefix: str) -> Any:
    found = await client.engine.notes(checks.check_prefix(prefix))
    return [note for note in found if not checks.is_private(note.name)]


async def _drop_note(client: Client, name: str) -> None:
    await client.engine.drop_note(checks.check_written_note(name))


CALLS: dict[str, Call] = {
    "hello": _hello,
    "add": _add,
    "claim": _claim,
    "apply": _apply,
    "delete": _delete,
    "get": _get,
    "find": _find,
    "count": _count,
    "history": _history,
    "wait": _wait,
    "read_note": _read_note,
    "write_note": _write_note,
    "notes": _notes,
    "drop_note": _drop_note,
}


@post("/{call:str}", status_code=200, request_max_body_size=wire.BODY_LIMIT)
async def serve(request: Request[Any, Any, Any]) -> Response[bytes]:
    call: str = request.path_params["call"]
    if call not in CALLS:
        raise NotFoundException(f"there is no call {call[:40]!r}")
    if request.content_type[0] != wire.MEDIA_TYPE:
        return _trouble(415, InvalidSetting(f"the content type must be {wire.MEDIA_TYPE}"))
    try:
        arguments = wire.decode_request(call, await request.body())
    except UNREADABLE as error:
        return _trouble(400, InvalidSetting(f"the body is not a request to {call}: {error}"))

    async def work() -> bytes:
        return wire.encode_answer(call, await _recorded(request, call, arguments))

    name = request.headers.get(wire.REQUEST, "")
    if call not in wire.WRITES or not 0 < len(name) <= _MAX_NAME_LENGTH:
        answer = await _recorded(request, call, arguments)
        if isinstance(answer, BoundedPage):
            return _answer(request, wire.encode(answer.tasks), {wire.CUT: "1"} if answer.is_cut else {})
        return _answer(request, wire.encode_answer(call, answer))
    data, remembered = await answers(request.app.state).once(f"{call} {name}", work)
    return _answer(request, data, {wire.REMEMBERED: "1"} if remembered else {})


async def _recorded(request: Request[Any, Any, Any], call: str, arguments: Any) -> Any:
    """Run a call, and record it in the audit trail if it is an action."""
    client: Client = request.app.state.client
    recorder, before = recorder_of(request.app.state), await controls_before(client, call, arguments)
    schedule = name_in(call, arguments)
    schedule_was = await schedule_before(client, checks.check_note(schedule)) if schedule else None
    try:
        answer = await CALLS[call](client, arguments)
    except (OutcomeUnknown, asyncio.CancelledError):  # cancelled by the time limit or a shutdown
        for action in actions_in(call, arguments, None, before):
            await recorder.record(request.scope, **action._asdict(), outcome="unknown")
        raise
    for action in actions_in(call, arguments, answer, before):
        await recorder.record(request.scope, **action._asdict())
    if schedule and (verb := action_on(arguments, schedule_was)):
        await recorder.record(request.scope, verb, target=f"schedule {schedule.removeprefix(SCHEDULES)}")
    return answer


def _answer(request: Request[Any, Any, Any], data: bytes, headers: dict[str, str] | None = None) -> Response[bytes]:
    client: Client = request.app.state.client
    limit = min(client.payload_limit, wire.MAX_PAYLOAD_LIMIT)
    headers = {wire.PAYLOAD_LIMIT: str(limit), **(headers or {})}
    return Response(data, media_type=wire.MEDIA_TYPE, status_code=200, headers=headers)


def _trouble(status: int, error: QoError, message: str | None = None) -> Response[bytes]:
    headers = {"Retry-After": RETRY_AFTER} if status == 503 else None  # noqa: PLR2004 - unavailable
    trouble = wire.trouble_of(error)
    if message is not None:
        log.warning("the store did not accept a request: %s", error)
        trouble = replace(trouble, message=message)
    return Response(wire.encode(trouble), media_type=wire.MEDIA_TYPE, status_code=status, headers=headers)


def _may_read(request: Request[Any, Any, Any]) -> bool:
    """Whether the caller may see the message of the store, which can contain its address."""
    caller: Caller | None = request.scope.get("qo_caller")  # type: ignore[assignment]
    return caller is not None and caller.may(Scope.READ)


def explain(request: Request[Any, Any, Any], error: QoError) -> Response[bytes]:
    """An error of the engine, encoded so that the client raises it again."""
    match error:
        case InvalidTask() | InvalidSetting() | BadBatch():
            return _trouble(400, error)
        case Conflict():
            return _trouble(409, error)
        case _ if is_size_refusal(error):  # repeating the request would not help
            return _trouble(413, error, None if _may_read(request) else TOO_LARGE)
        case OutcomeUnknown() | StorageError():
            return _trouble(503, error, None if _may_read(request) else STORE_AWAY)
    return _trouble(400, error)


engine_router = Router(
    path="/engine",
    route_handlers=[serve],
    exception_handlers={QoError: explain},
    opt=ENGINE,
    include_in_schema=False,  # bodies are msgpack of internal types
)
