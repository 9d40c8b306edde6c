"""A request: its JSON body, query parameters and trace id, unique options, and where it comes from. All are validated
strictly.

Browsers send Origin and Sec-Fetch-* headers, which pages cannot change. A page from another site must not use a
visitor's browser to call a server that trusts this browser, because it runs on the same machine or has a session.

A server without tokens trusts its own machine. A proxy on that machine forwards requests of other machines, so a
request with headers of a proxy is not trusted. These headers only remove trust, they never add it.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

import msgspec
from litestar import Request
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.types import AnyCallable
from msgspec.structs import replace

from qo.codec import encode_value, from_json, parse_json
from qo.errors import InvalidSetting, InvalidTask
from qo.ids import new_token
from qo.model import NewTask, OnDuplicate, Unique, UniqueUntil, derived_id
from qo.web.callers import Caller, Scope
from qo.web.http.problems import name_words

_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at `\$\.?(?P<place>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"(?:missing required|contains unknown) field `(.*)`$", re.DOTALL)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NOT_QUERY_PARAMETERS = frozenset({"request", "data", "state", "scope", "headers"})
_UNSUPPORTED = 415
UniqueBy = list[str] | Literal["args"]  # names of arguments, or all of them


class StrictRequest(Request[Any, Any, Any]):
    """Parses JSON with qo's own parser and converts strictly: "5" is not a number."""

    async def json(self) -> Any:
        if not is_json(self.headers.get("content-type", "")):
            raise HTTPException("send the body as JSON, with Content-Type: application/json", status_code=_UNSUPPORTED)
        expected = self.route_handler.parsed_data_field
        return read_body(await self.body(), Any if expected is None else expected.annotation)


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def read_body(body: bytes, kind: Any) -> Any:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidTask("body", f"is not UTF-8 text: {error.reason} at byte {error.start}") from error
    return convert(parse_json(text, "body"), kind)


def convert(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        place, problem = locate_error(str(error))
        raise InvalidTask(place, name_words(problem, kind, place)) from error


def locate_error(message: str) -> tuple[str, str]:
    """The field and the problem in an error message of msgspec."""
    found = _WHERE.match(message)
    place, problem = (found["place"] or "", found["problem"]) if found else ("", message)
    named = _FIELD.search(problem)
    return ".".join(part for part in (place, named[1] if named else "") if part) or "body", problem


def encode_payload(value: Any) -> bytes:
    """A part of the body as a payload. It was validated when parsed; raw bytes arrive as base64 and are not JSON."""
    plain = from_json(value)
    return encode_value(plain) if isinstance(plain, bytes) else msgspec.json.encode(plain)


def rename_field(error: InvalidTask, names: Mapping[str, str], prefix: str = "") -> InvalidTask:
    """The same error with the API's name of the field instead of the model's."""
    name = prefix + names.get(error.field, error.field)
    return InvalidTask(name, str(error).removeprefix(f"{error.field}: "))


def refuse_unknown(given: list[str], handler: BaseRouteHandler) -> None:
    """Raise if a query parameter is unknown: a misspelt filter must not match everything."""
    known = parameters(handler.fn)
    for name in given:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ValidationException(extra=[{"key": name, "message": f"unknown parameter; known ones: {names}"}])


@cache  # by function, because Litestar copies the handler for each request
def parameters(function: AnyCallable) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) - _NOT_QUERY_PARAMETERS


def trace_of(request: Request[Any, Any, Any]) -> str:
    """The trace id of the request (W3C `traceparent`), or a new one."""
    found = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    return found[1] if found else new_token()


LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(
    r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_])?)(?::(?P<port>[0-9]{1,5}))?"
)
_MAX_PORT: Final = 65535


@lru_cache(maxsize=256)
def host_name(host: str) -> str | None:
    """The name in a Host header, in lower case and without its port; None if the header is malformed."""
    found = _HOST.fullmatch(host.lower())
    if found is None or int(found["port"] or 0) > _MAX_PORT:
        return None
    return found["name"]


def allowed_names(hosts: Iterable[str]) -> frozenset[str]:
    """These names and the loopback names. Raises InvalidSetting."""
    return LOOPBACK | {_check_host(host) for host in hosts}


def _check_host(host: str) -> str:
    name = host_name(host)
    if name is None:
        raise InvalidSetting(f"{host!r:.80} is not a host name such as queue.example.com: no scheme, no path, no *")
    return name


_SINGLE_HEADERS: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"})
_TRUSTED_SITES: Final = frozenset({b"same-origin", b"none"})  # none: the user typed the address or used a bookmark


def repeats_single(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a header that decides about access is repeated: another program might read the other one."""
    names = [name for name, _ in headers if name in _SINGLE_HEADERS]
    return len(names) != len(set(names))


def is_foreign_origin(origin: str | None, host: str) -> bool:
    """Whether a page of another origin sent the request."""
    return origin is not None and not (host and origin.lower() in (f"http://{host}", f"https://{host}"))


def is_cross_site(headers: dict[bytes, bytes], method: str) -> bool:
    """Whether a page of another site made the browser send the request, other than by a navigation.

    A link, and the redirect back from a login, navigate the whole window by GET: they show a page to the user and
    nothing to the page they come from. Images, scripts, frames and forms of other sites are rejected. Clients that are
    not browsers do not send these headers.
    """
    site = headers.get(b"sec-fetch-site")
    if site is None or site in _TRUSTED_SITES:
        return False
    is_navigation = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return not (is_navigation and method in ("GET", "HEAD"))


def check_origin(origin: str) -> str:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise InvalidSetting(f"{origin!r:.80} is not an origin such as https://example.com: no path, no *")
    return origin


_NAMES = frozenset(
    {
        b"forwarded",
        b"via",
        b"client-ip",
        b"true-client-ip",
        b"cdn-loop",
        b"max-forwards",
        b"proxy-connection",
        b"x-real-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-proxyuser-ip",
        b"x-original-host",
        b"x-original-url",
        b"x-rewrite-url",
        b"x-scheme",
        b"x-host",
        b"x-request-start",
        b"x-cache",
        b"x-proxy-id",
        b"wl-proxy-client-ip",
        b"ssl-client-cert",
        b"tailscale-user-login",
    }
)
_PREFIXES = (
    b"x-forwarded",  # -for, -host, -proto, -port, -server, -prefix, -by, -user, ...
    b"x-original-forwarded",
    b"cf-",  # Cloudflare
    b"x-amz-cf-",  # CloudFront
    # AWS load balancers; X-Amzn-Trace-Id is not listed, because local clients with tracing send it too.
    b"x-amzn-oidc-",
    b"cloudfront-",
    b"x-azure-",
    b"x-arr-",  # IIS, Azure App Service
    b"x-appengine-",
    b"x-envoy-",
    b"x-akamai-",
    b"akamai-",
    b"fastly-",
    b"fly-",
    b"x-vercel-",
    b"x-nf-",  # Netlify
    b"x-varnish",
    b"x-traefik-",
    b"x-nginx-",
    b"x-ngrok-",
    b"ngrok-",
    b"x-auth-request-",  # oauth2-proxy
    b"proxy-",
)
_MAX_CACHED_NAME = 64  # bytes; longer names are not cached, because any client can send them


def is_forwarded(headers: Iterable[tuple[bytes, bytes]], http_version: str) -> bool:
    """Whether a header or the HTTP version indicates a proxy: nginx before 1.29.7 uses HTTP/1.0 by default."""
    if http_version == "1.0":
        return True
    return any(_is_of_proxy(name) if len(name) <= _MAX_CACHED_NAME else _is_listed(name) for name, _ in headers)


@lru_cache(maxsize=1024)  # clients send few different names
def _is_of_proxy(name: bytes) -> bool:
    return _is_listed(name)


def _is_listed(name: bytes) -> bool:
    return name in _NAMES or name.startswith(_PREFIXES)


class UniqueOptions(Protocol):
    """The fields that have different names in each API."""

    @property
    def by(self) -> UniqueBy: ...
    @property
    def within_seconds(self) -> float | None: ...
    @property
    def until(self) -> UniqueUntil: ...
    @property
    def on_duplicate(self) -> OnDuplicate: ...


def unique_of(given: UniqueOptions | None) -> Unique | None:
    if given is None:
        return None
    by = given.by if isinstance(given.by, str) else tuple(given.by)
    return Unique(by=by, within=given.within_seconds, until=given.until, on_duplicate=given.on_duplicate)


def with_own_key(task: NewTask, caller: Caller) -> NewTask:
    """Gives a caller without the scope `read` its own idempotency keys, so that guessed keys reveal no tasks.

    The same applies to unique arguments, which become a key. A caller without the scope `operate` has its own keys for
    submissions that replace a waiting task, because it must not change the tasks of others.

    The keys depend on the caller's name: a token that replaces another one of the same name keeps its keys.
    """
    is_shared = caller.may(Scope.READ if task.on_duplicate != "replace" else Scope.OPERATE)
    if task.idempotency_key is None or is_shared:
        return task
    own = f"\0{caller.name}\0{task.idempotency_key}"  # names and keys contain no NUL
    return replace(task, id=derived_id(task.queue, task.type, own))
