"""The engine port over HTTP: one POST per call. It gives access to the whole store, including all leases.

Native workers and monitors use the port for claims, settlements, renewals, expiries, registrations and statistics. The
audit trail does not record these. It records cancelled, replayed, archived and deleted tasks, and changed controls.

Responses are kept for a minute. A client repeats a write whose response was lost, and gets the same response.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from litestar import Request, Response, Router, post
from litestar.datastructures import State
from litestar.exceptions import NotFoundException
from msgspec.structs import replace

from qo import wire
from qo.client import Client
from qo.clock import Clock, boot_clock
from qo.errors import (
    BadBatch,
    Conflict,
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
    NewTask,
    check_batch_id,
    check_id,
    check_number,
)
from qo.schedules.schedule_notes import SCHEDULES
from qo.web.callers import Caller, Scope
from qo.web.http.access import ENGINE
from qo.web.http.action_recorder import recorder_of
from qo.web.http.byte_budget import BoundedPage, claim_within, find_within, get_within
from qo.web.http.problems import STORE_AWAY, TOO_LARGE
from qo.web.remote import checks
from qo.web.remote.engine_actions import actions_in, controls_before, schedule_action, schedule_before, schedule_note_in

log = logging.getLogger("qo.web")
RETRY_AFTER = "1"  # seconds until a client should try again if the store is unreachable
_MAX_NAME_LENGTH = 128

Call = Callable[[Client, Any], Awaitable[Any]]
MAX_AGE = 60.0  # seconds that a response is kept
MAX_RESPONSES, MAX_BYTES = 20_000, 64 * 1024 * 1024
MAX_RESPONSE = 1024 * 1024  # bytes; a larger response is a claim, which the store itself can repeat


class _Known(NamedTuple):
    at: float
    answer: asyncio.Future[bytes]


class ResponseCache:
    """The cache of one server process. Other processes respond that they have no cached response."""

    def __init__(self, clock: Clock = boot_clock) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}  # oldest first
        self._bytes = 0

    async def once(self, name: str, work: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """Run `work` unless it ran or runs under this name. Returns the response and whether it was cached."""
        self._tidy()
        known = self._known.get(name)
        if known is not None:
            return await asyncio.shield(known.answer), True
        answer = asyncio.ensure_future(work())
        self._known[name] = _Known(self._clock(), answer)
        answer.add_done_callback(lambda done: self._done(name, done))
        return await asyncio.shield(answer), False  # the work continues if the caller disconnects

    def _done(self, name: str, answer: "asyncio.Future[bytes]") -> None:
        if answer.cancelled() or answer.exception() is not None or len(answer.result()) > MAX_RESPONSE:
            self._known.pop(name, None)  # a repeat runs the work again
        else:
            self._bytes += len(answer.result())

    def _tidy(self) -> None:
        old = self._clock() - MAX_AGE
        while self._known:
            name, known = next(iter(self._known.items()))
            if known.at > old and len(self._known) <= MAX_RESPONSES and self._bytes <= MAX_BYTES:
                return
            if not known.answer.done():
                return
            del self._known[name]
            self._bytes -= len(known.answer.result())


def answers(state: State) -> ResponseCache:
    """The cache of the application, created on first use."""
    found: ResponseCache | None = state.get("answers")
    if found is None:
        found = state["answers"] = ResponseCache()
    return found


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
    schedule = schedule_note_in(call, arguments)
    schedule_was = await schedule_before(client, checks.check_note(schedule)) if schedule else None
    try:
        answer = await CALLS[call](client, arguments)
    except (OutcomeUnknown, asyncio.CancelledError):  # cancelled by the time limit or a shutdown
        for action in actions_in(call, arguments, None, before):
            await recorder.record(request.scope, **action._asdict(), outcome="unknown")
        raise
    for action in actions_in(call, arguments, answer, before):
        await recorder.record(request.scope, **action._asdict())
    if schedule and (verb := schedule_action(arguments, schedule_was)):
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
