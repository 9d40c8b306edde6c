"""The outermost layer: checks hosts and origins, adds headers to every response, writes one log line per request."""

import asyncio
import logging
from typing import Any, cast

import msgspec
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Send

from qo.clock import boot_clock
from qo.web.http.in_flight import InFlight, RequestBody, RequestsInFlight
from qo.web.http.problems import Problem
from qo.web.http.request import HEADERS, allowed_names, check_origin, host_name, is_cross_site, is_foreign_origin
from qo.web.http.settings import WebSettings

log = logging.getLogger("qo.web")

_REFUSED, _UNAVAILABLE = 400, 503
_CODES = {400: "invalid", 403: "forbidden", 408: "timeout", 503: "unavailable"}
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


class Edge:
    def __init__(self, settings: WebSettings, in_flight: RequestsInFlight) -> None:
        self._hosts = allowed_names(settings.hosts)
        self._origins = frozenset(check_origin(origin) for origin in settings.origins)
        self._in_flight = in_flight

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send, app: ASGIApp) -> None:
        request = self._in_flight.begin()
        try:
            given = [pair for pair in scope["headers"] if pair[0] in HEADERS]
            headers = dict(given)
            origin = headers[b"origin"].decode("latin-1") if b"origin" in headers else None
            body = RequestBody(scope, receive, self._in_flight, request)
            answer = EdgeResponse(scope, send, origin if origin in self._origins else None, body, request)
            refusal = (
                self._refusal(headers, scope["method"], origin) if len(given) == len(headers) else _REPEATED_HEADER
            )
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

    def _refusal(self, headers: dict[bytes, bytes], method: str, origin: str | None) -> tuple[int, str] | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if host_name(host) not in self._hosts:
            return 400, f"this server does not accept the host {host!r:.80}; add it with --allowed-host"
        if origin in self._origins:
            return None
        if is_foreign_origin(origin, host):
            return 403, f"pages of the origin {origin!r:.80} cannot call this server; add it with --origin"
        if is_cross_site(headers, method):
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
        return [(b"access-control-allow-origin", self.origin.encode("latin-1")), (b"vary", b"Origin")]

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

    def log(self) -> None:
        scope = self._scope
        level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
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
