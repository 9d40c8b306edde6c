"""Before and after everything else: which hosts and pages may call, what every answer carries, one log line each."""

import logging
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Send

from qo.clock import boot_clock
from qo.errors import InvalidSetting
from qo.web.problems import Problem
from qo.web.settings import WebSettings
from qo.web.unread_body import RequestBody

log = logging.getLogger("qo.web")

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_REFUSED = 400
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds by machines

_ALWAYS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
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
    def __init__(self, settings: WebSettings) -> None:
        self._hosts = LOOPBACK | {host_name(host) for host in settings.hosts}
        self._origins = frozenset(check_origin(origin) for origin in settings.origins)

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send, app: ASGIApp) -> None:
        headers = {name: value for name, value in scope["headers"] if name in (b"host", b"origin")}
        host = headers.get(b"host", b"").decode("latin-1").lower()
        origin = headers[b"origin"].decode("latin-1") if b"origin" in headers else None
        body = RequestBody(scope, receive)
        answer = Answer(scope, send, origin if origin in self._origins else None, body)
        if host_name(host) not in self._hosts:
            await answer.refuse(400, f"this server is not called {host!r:.80}; name it with --allowed-host")
        elif origin is not None and origin not in self._origins and not _same(origin, host):
            # A page from elsewhere must not use a visitor's browser to call a server on the visitor's own machine.
            await answer.refuse(403, f"pages from {origin!r:.80} may not call this server; name it with --origin")
        elif scope["method"] == "OPTIONS" and answer.origin is not None:
            await answer.plain(204, b"", _PREFLIGHT)
        else:
            await app(scope, body.receive, answer.send)
        answer.tell()


class Answer:
    """One answer on its way out."""

    def __init__(self, scope: HTTPScope, send: Send, origin: str | None, body: RequestBody) -> None:
        self._scope, self._send, self.origin, self._body = scope, send, origin, body
        self._began_at, self._status = boot_clock(), 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if self._status >= _REFUSED:
                await self._body.drain()
            given = [(name.lower(), value) for name, value in message["headers"]]
            names = {name for name, _ in given}
            extra = [pair for pair in _UNLESS_SET if pair[0] not in names]
            message["headers"] = [*given, *_ALWAYS, *extra, *self._cors()]
        await self._send(message)

    def _cors(self) -> list[tuple[bytes, bytes]]:
        if self.origin is None:
            return []
        return [(b"access-control-allow-origin", self.origin.encode("latin-1")), (b"vary", b"Origin")]

    async def refuse(self, status: int, message: str) -> None:
        problem = msgspec.json.encode(Problem(error=message, code="invalid" if status == 400 else "forbidden"))  # noqa: PLR2004
        await self.plain(status, problem, [(b"content-type", b"application/json")])

    async def plain(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        length = [(b"content-length", str(len(body)).encode())] if body else []
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def tell(self) -> None:
        scope = self._scope
        level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
        if not log.isEnabledFor(level):
            return
        client = scope.get("client")
        about: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"],
            "http_status": self._status,
            "milliseconds": round(1000 * (boot_clock() - self._began_at), 2),
            "client": client[0] if client else None,
            "token": scope.get("qo_token"),
        }
        about |= cast("dict[str, Any]", scope).get("qo_transition", {})
        log.log(level, "%s %s %d", scope["method"], scope["path"], self._status, extra=about)


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def check_origin(origin: str) -> str:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise InvalidSetting(f"{origin!r:.80} is not an origin such as https://example.com: no path, no *")
    return origin


def _same(origin: str, host: str) -> bool:
    return bool(host) and origin.lower() in (f"http://{host}", f"https://{host}")
