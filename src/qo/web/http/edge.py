"""The outermost layer: hosts and origins, headers, bodies, log lines, and the limits for requests in progress.

Each request has a time limit, and the bodies of all have a memory limit. One background task ends overdue requests, so
that a request only costs an entry in a dictionary.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Any, cast

import msgspec
from litestar.exceptions import ClientException, HTTPException
from litestar.types import ASGIApp, HTTPReceiveMessage, HTTPScope, Message, Receive, Send

from qo.clock import boot_clock
from qo.web.http.problems import Problem
from qo.web.http.request import (
    allowed_names,
    check_origin,
    host_name,
    is_cross_site,
    is_foreign_origin,
    repeats_single,
)
from qo.web.http.settings import ServerLimits, WebSettings

log = logging.getLogger("qo.web")
STREAM = "qo_stream"  # set in the scope of a request whose response has no end
_UNAVAILABLE = 503
_MAX_DRAINED = 64 * 1024 * 1024  # bytes read from a rejected upload before the connection is closed
_MAX_DRAIN_TIME = 10.0  # seconds
_REFUSED = 400
_CODES = {400: "invalid", 403: "forbidden", 404: "not_found", 408: "timeout", 503: "unavailable"}
DASHBOARD = "/api/v1/dashboard/"  # an open page polls it
PAGES = "/ui"  # a page consists of dozens of files
BAD_REQUEST = 400
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})  # polled every few seconds; logged at debug level
_REPEATED_HEADER = (400, "a Host, Origin or Sec-Fetch header is repeated")
_ALWAYS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_UNLESS_SET = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"Authorization, Content-Type, Traceparent"),
    (b"access-control-max-age", b"600"),
]
_MAX_CHECK_INTERVAL = 1.0  # seconds between checks for overdue requests
_LARGE_BODY = 64 * 1024  # bytes; larger bodies are processed within _MAX_LARGE_BODIES
_MAX_LARGE_BODIES = 4 * 1024 * 1024  # bytes processed concurrently; decoded they take up to 25 times as much memory
_REQUEST_TIMEOUT = 408


class InFlight:
    """One request. `refusal` is the status and reason if the server ends it early."""

    __slots__ = ("began_at", "handled_size", "is_answered", "is_uploading", "refusal", "size", "task")

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.began_at = boot_clock()
        self.size = 0  # bytes of the body in memory
        self.handled_size = 0  # the same while the body is being processed
        self.is_uploading = False
        self.is_answered = False
        self.refusal: tuple[int, str] | None = None

    def cut(self, status: int, why: str) -> None:
        if self.task is not None and not self.is_answered and self.refusal is None:
            self.refusal = (status, why)
            self.task.cancel()


class RequestsInFlight:
    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._all: OrderedDict[InFlight, None] = OrderedDict()  # oldest first
        self._size = 0  # bytes of bodies in memory
        self._handled_size = 0
        self._queue: deque[tuple[InFlight, asyncio.Future[None]]] = deque()  # large bodies that wait to be processed

    def begin(self) -> InFlight:
        request = InFlight()
        self._all[request] = None
        return request

    def end(self, request: InFlight) -> None:
        self._all.pop(request, None)
        if request.size:
            self._size -= request.size
            self._handled_size -= request.handled_size
            self._grant_turns()

    def hold(self, request: InFlight, size: int) -> None:
        """Account for a received part of a body. Raises a 503 if it does not fit."""
        request.size += size
        self._size += size
        if self._size > self._limits.max_upload_memory:
            self._make_room(request)

    async def wait_for_turn(self, request: InFlight) -> None:
        """Wait until the complete body can be processed."""
        if request.size > _LARGE_BODY:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append((request, turn))
            self._grant_turns()
            await turn

    def _make_room(self, newest: InFlight) -> None:
        """End the oldest unfinished uploads: a normal upload takes moments."""
        excess = self._size - self._limits.max_upload_memory
        for request in self._all:
            if excess <= 0:
                return
            if request is not newest and request.is_uploading and request.size and request.refusal is None:
                request.cut(_REQUEST_TIMEOUT, "the upload was too slow while the server was short of memory")
                excess -= request.size
                self._size -= request.size
                request.size = 0
        if excess > 0:
            headers = {"Retry-After": "1"}
            raise HTTPException(
                "too many uploads are in progress; try again later", status_code=_UNAVAILABLE, headers=headers
            )

    def _grant_turns(self) -> None:
        while self._queue:
            request, turn = self._queue[0]
            if not turn.done():
                if self._handled_size and self._handled_size + request.size > _MAX_LARGE_BODIES:
                    return
                request.handled_size = request.size
                self._handled_size += request.size
                turn.set_result(None)
            self._queue.popleft()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(_MAX_CHECK_INTERVAL, self._limits.request_timeout / 4))
            self._cut_overdue()

    def _cut_overdue(self) -> None:
        limit = self._limits.request_timeout
        for request in list(self._all):
            if boot_clock() - request.began_at < limit:
                return
            if request.is_uploading:
                request.cut(_REQUEST_TIMEOUT, f"the body took longer than {limit:g} s")
            else:
                request.cut(_UNAVAILABLE, f"the request took longer than {limit:g} s; its changes may have been made")


class UploadAborted(ClientException):
    """The client disconnected before it had sent the whole body. It is logged with one line."""


class RequestBody:
    """Counts the body while it is read, and reads it to its end if the request is rejected.

    Many clients send the whole body before they read the response. If the server responded and closed the connection
    before that, they would see a reset connection instead of the response.
    """

    def __init__(
        self, headers: dict[bytes, bytes], receive: Receive, in_flight: RequestsInFlight, request: InFlight
    ) -> None:
        self._receive, self._in_flight, self._request = receive, in_flight, request
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        # A client with `Expect: 100-continue` sends nothing before `100 Continue`, and reading would send that.
        request.is_uploading = has_body
        self.is_aborted = False
        self._is_unread = has_body and headers.get(b"expect", b"").lower() != b"100-continue"

    async def receive(self) -> HTTPReceiveMessage:
        """The next part of the body."""
        message = await self._next()
        if message["type"] == "http.request":
            self._in_flight.hold(self._request, len(message["body"]))
            if not message["more_body"]:
                await self._in_flight.wait_for_turn(self._request)
        return message

    async def drain(self) -> None:
        """Read the rest of the body, up to a size and a time."""
        drained = 0
        with suppress(TimeoutError, UploadAborted):
            async with asyncio.timeout(_MAX_DRAIN_TIME):
                while self._is_unread and drained < _MAX_DRAINED:
                    message = await self._next()
                    drained += len(message["body"]) if message["type"] == "http.request" else 0

    def abandon(self) -> None:
        """Stop reading the body."""
        self._is_unread = False

    async def _next(self) -> HTTPReceiveMessage:
        was_uploading = self._request.is_uploading
        message = cast("HTTPReceiveMessage", await self._receive())
        self._request.is_uploading = message["type"] == "http.request" and bool(message["more_body"])
        self._is_unread = self._request.is_uploading and self._is_unread
        if was_uploading and message["type"] == "http.disconnect":
            self.is_aborted = True
            raise UploadAborted("the client disconnected before it had sent the whole body")
        return message


class Edge:
    def __init__(self, settings: WebSettings, in_flight: RequestsInFlight) -> None:
        self._hosts = allowed_names(settings.hosts)
        self._origins = frozenset(check_origin(origin) for origin in settings.origins)
        self._in_flight = in_flight

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send, app: ASGIApp) -> None:
        request = self._in_flight.begin()
        try:
            given = list(scope["headers"])
            headers = dict(given)
            is_repeated = len(headers) != len(given) and repeats_single(given)
            origin = headers[b"origin"].decode("latin-1") if b"origin" in headers else None
            body = RequestBody(headers, receive, self._in_flight, request)
            answer = EdgeResponse(scope, send, origin if origin in self._origins else None, body, request)
            refusal = _REPEATED_HEADER if is_repeated else self._refusal(headers, scope, origin)
            if refusal is not None:
                await answer.refuse(*refusal)
            elif scope["method"] == "OPTIONS" and answer.origin is not None:
                await answer.plain(204, b"", _PREFLIGHT)
            else:
                await app(scope, body.receive, answer.send)
        except asyncio.CancelledError:
            if request.refusal is None or request.is_answered or request.task is None:
                raise
            request.task.uncancel()
            await answer.cut_short(*request.refusal)
        finally:
            self._in_flight.end(request)
        answer.log()

    def _refusal(self, headers: dict[bytes, bytes], scope: HTTPScope, origin: str | None) -> tuple[int, str] | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if host_name(host) not in self._hosts:
            return 400, f"this server does not accept the host {host!r:.80}; add it with --allowed-host"
        # The router drops empty segments, so an empty id would turn the replay of one task into the replay of all.
        if "//" in scope["path"]:
            return 404, f"the path {scope['path']!r:.80} has an empty segment"
        if origin in self._origins:
            return None
        if is_foreign_origin(origin, host):
            return 403, f"pages of the origin {origin!r:.80} cannot call this server; add it with --origin"
        if is_cross_site(headers, scope["method"]):
            return 403, "pages of another site cannot call this server; add their origin with --origin"
        return None


class EdgeResponse:
    """One response."""

    def __init__(self, scope: HTTPScope, send: Send, origin: str | None, body: RequestBody, request: InFlight) -> None:
        self._scope, self._send, self.origin, self._body, self._request = scope, send, origin, body, request
        self._status = 0
        self._last_headers: list[tuple[bytes, bytes]] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._request.is_answered = True
            if self._status >= _REFUSED:
                await self._body.drain()
            given = [(name.lower(), value) for name, value in message["headers"]]
            names = {name for name, _ in given}
            extra = [pair for pair in _UNLESS_SET if pair[0] not in names]
            message["headers"] = [*given, *_ALWAYS, *extra, *self._cors(), *self._last_headers]
        await self._send(message)

    def _cors(self) -> list[tuple[bytes, bytes]]:
        if self.origin is None:
            return []
        return [
            (b"access-control-allow-origin", self.origin.encode("latin-1")),
            (b"access-control-expose-headers", b"Date"),  # the page shows ages by the clock of the server
            (b"vary", b"Origin"),
        ]

    async def refuse(self, status: int, message: str) -> None:
        problem = msgspec.json.encode(Problem(error=message, code=_CODES[status]))
        retry = [(b"retry-after", b"1")] if status == _UNAVAILABLE else []
        await self.plain(status, problem, [(b"content-type", b"application/json"), *retry])

    async def cut_short(self, status: int, message: str) -> None:
        """Reject without waiting for the rest of the body, and close the connection."""
        self._body.abandon()
        self._last_headers = [(b"connection", b"close")]
        await self.refuse(status, message)

    async def plain(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        length = [(b"content-length", str(len(body)).encode())] if body else []
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def _is_poll(self) -> bool:
        """Whether this is a successful request of the dashboard or a probe, of which there are many."""
        path, is_read = self._scope["path"], self._scope["method"] == "GET"
        return path in QUIET or (is_read and self._status < BAD_REQUEST and path.startswith((DASHBOARD, PAGES)))

    def log(self) -> None:
        scope = self._scope
        level = logging.DEBUG if self._is_poll() else logging.INFO
        if not log.isEnabledFor(level):
            return
        client = scope.get("client")
        fields: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"],
            "http_status": self._status,
            "milliseconds": round(1000 * (boot_clock() - self._request.began_at), 2),
            "client": client[0] if client else None,
            "token": scope.get("qo_token"),
        }
        fields |= cast("dict[str, Any]", scope).get("qo_transition", {})
        if self._body.is_aborted:
            log.log(level, "%s %s aborted by the client", scope["method"], scope["path"], extra=fields)
        else:
            log.log(level, "%s %s %d", scope["method"], scope["path"], self._status, extra=fields)
