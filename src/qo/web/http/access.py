"""Which callers can use which routes.

Each route names a scope; a route without one is for admins. A route that applies the limits of its caller (queues and
types) declares how: `LIMITED`, `HIDDEN` or `CHECKED`. All other routes reject callers with limits. docs/access.md is a
table of all routes, generated from these declarations.
"""

import asyncio
import contextlib
import ipaddress
import math
from enum import StrEnum
from functools import lru_cache
from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException, TooManyRequestsException

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.errors import QoError, StorageError
from qo.rate_limits import TokenBucket
from qo.web.callers import LOCAL_CALLER, Caller, Scope
from qo.web.http.request import is_forwarded, refuse_unknown
from qo.web.http.settings import WebSettings
from qo.web.http.tokens import KnownCallers, Tokens, TokenUseRecorder, is_live, read_tokens
from qo.web.oidc.login import LoginService
from qo.web.oidc.sessions import CSRF_HEADER, is_csrf_token

Connection = ASGIConnection[Any, Any, Any, Any]

PUBLIC = {"public": True}
READ = {"scope": Scope.READ}
SUBMIT = {"scope": Scope.SUBMIT}
WORK = {"scope": Scope.WORK}
OPERATE = {"scope": Scope.OPERATE}
ADMIN = {"scope": Scope.ADMIN}
ENGINE = {"scope": Scope.ENGINE}
ANY_QUERY = {"any_query": True}  # accepts unknown parameters, for calls by identity providers


class Outside(StrEnum):
    """How a handler treats tasks outside of `caller_of(request).limits`."""

    LEFT_OUT = "left out"  # from lists, counts and bulk operations
    NOT_FOUND = "404"  # as if the task or worker did not exist
    REFUSED = "403"  # for names in the request, which reveals nothing


LIMITED = {"outside": Outside.LEFT_OUT}
HIDDEN = {"outside": Outside.NOT_FOUND}
CHECKED = {"outside": Outside.REFUSED}

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_AGE = 1.0  # seconds for which a read of the tokens is reused; a revocation takes effect after at most this
_REFRESH_AGE = 0.7  # seconds after which they are read again in the background, so that no request waits for it


class Gate:
    def __init__(
        self,
        engine: Engine,
        settings: WebSettings,
        clock: Clock,
        *,
        elapsed: Clock = boot_clock,
        login: LoginService | None = None,
    ) -> None:
        self._engine, self._settings, self._clock, self._elapsed = engine, settings, clock, elapsed
        self._login = login
        self._rate_limit = RequestRateLimit(settings.rate_limit)
        self._known = KnownCallers(Tokens())
        self._known_at = -math.inf
        self._reading = asyncio.Lock()
        self._refresh: asyncio.Task[None] | None = None
        self.uses = TokenUseRecorder(engine)

    async def admit(self, connection: Connection, scope: Scope, *, limited: bool = False) -> None:
        """Put the `Caller` on the connection, or raise the HTTP error for a caller that is not admitted."""
        known = await self._callers()
        secret = bearer(connection)
        user = await self._user(connection) if secret is None else None
        if user is None and secret is None and self.is_open(known, connection):
            caller = LOCAL_CALLER
        else:
            admitted = (user or self._caller(known, secret)).within(scope)
            if admitted is None:
                raise PermissionDeniedException(f"this needs a token with the scope {scope}")
            caller = admitted
            if not limited and not caller.limits.is_whole:
                raise PermissionDeniedException("this needs a token without limits to queues or types")
        put_caller(connection, caller)
        wait = self._rate_limit.take(caller.id)
        if wait:
            raise TooManyRequestsException("too many requests", headers={"Retry-After": str(math.ceil(wait))})

    async def is_admitted(self, caller: Caller) -> bool:
        """Whether an admitted caller is still admitted. For long requests."""
        try:
            known = await self._callers()
            if caller.kind == "user":
                return self._login is not None and await self._login.sessions.is_open(caller)
        except StorageError:
            known = self._known
        if caller.kind == "user":
            return is_live(caller, self._clock())
        if caller is LOCAL_CALLER:
            return not known.existed
        return known.knows(caller.id) and is_live(caller, self._clock())

    async def check_still_admitted(self, caller: Caller) -> None:
        """After a wait: raise the HTTP error if the caller is no longer admitted."""
        if not await self.is_admitted(caller):
            raise _unknown_token()

    async def _user(self, connection: Connection) -> Caller | None:
        """The user whose session the cookie names. A request that changes something also needs a CSRF token."""
        if self._login is None or not (secret := self._login.session_secret(connection)):
            return None
        caller = await self._login.sessions.caller(secret)
        if caller is None:
            raise NotAuthorizedException("your session has ended; log in again")
        given = connection.headers.get(CSRF_HEADER, "")
        if connection.scope["method"] not in _SAFE_METHODS and not is_csrf_token(given, secret):  # type: ignore[typeddict-item]
            raise PermissionDeniedException(f"an action of a logged-in user needs the header {CSRF_HEADER}")
        return caller

    def _caller(self, known: KnownCallers, secret: str | None) -> Caller:
        now = self._clock()
        caller = None if secret is None else known.match(secret, now)
        if caller is None:
            raise _unknown_token("send a token: Authorization: Bearer ..." if secret is None else "")
        self.uses.record(caller.id, now)
        return caller

    def is_open(self, known: KnownCallers, connection: Connection) -> bool:
        """Whether requests without a token are admitted: only from this machine, and while no token has ever existed.

        A server with other host names or with logins is meant for other machines. A proxy on this machine forwards
        requests of other machines and may rewrite the Host header, so a forwarded request is not admitted.
        """
        settings = self._settings
        if settings.token_required or settings.hosts or settings.oidc is not None or known.existed:
            return False
        if is_forwarded(connection.scope["headers"], connection.scope.get("http_version", "1.1")):
            return False
        return connection.client is None or is_loopback(connection.client.host)

    def forget(self) -> None:
        """Read the tokens again for the next request."""
        self._known_at = -math.inf

    async def finish(self) -> None:
        """Wait for a read in progress."""
        if self._refresh is not None:
            await asyncio.wait([self._refresh])

    async def _callers(self) -> KnownCallers:
        age = self._elapsed() - self._known_at
        if age >= _MAX_AGE:
            await self._read_tokens(_MAX_AGE)
        elif age >= _REFRESH_AGE and (self._refresh is None or self._refresh.done()):
            self._refresh = asyncio.create_task(self._read_early(), name="qo reads the tokens")
        return self._known

    async def _read_early(self) -> None:
        with contextlib.suppress(QoError):  # a request that has to wait for the tokens reports the error
            await self._read_tokens(_REFRESH_AGE)

    async def _read_tokens(self, max_age: float) -> None:
        async with self._reading:
            if self._elapsed() - self._known_at >= max_age:
                known = KnownCallers(await read_tokens(self._engine))
                known.existed = known.existed or self._known.existed  # tokens stay required once one has existed
                self._known, self._known_at = known, self._elapsed()


def _unknown_token(why: str = "") -> NotAuthorizedException:
    return NotAuthorizedException(why or "this token is unknown or expired", headers={"WWW-Authenticate": "Bearer"})


def bearer(connection: Connection) -> str | None:
    kind, _, secret = connection.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None


def put_caller(connection: Connection, caller: Caller) -> None:
    connection.scope["qo_token"] = caller.id  # type: ignore[typeddict-unknown-key]  # for the log line
    connection.scope["qo_caller"] = caller  # type: ignore[typeddict-unknown-key]


def caller_of(connection: Connection) -> Caller:
    """The caller of an admitted request. Requests to public routes have none."""
    caller: Caller = connection.scope["qo_caller"]  # type: ignore[typeddict-item]
    return caller


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def admit(request: Request[Any, Any, Any]) -> None:
    """Runs before every route, before the body is read. Not a guard: Litestar copies the handler for each guard."""
    handler = request.route_handler
    if not handler.opt.get("public"):
        gate: Gate = request.app.state.gate
        await gate.admit(request, handler.opt.get("scope", Scope.ADMIN), limited="outside" in handler.opt)
    if request.scope["query_string"] and not handler.opt.get("any_query"):
        refuse_unknown(list(request.query_params), handler)


class RequestRateLimit:
    def __init__(self, rate: float, clock: Clock = boot_clock) -> None:
        self._rate, self._clock = rate, clock
        self._buckets: dict[str, TokenBucket] = {}  # by caller

    def take(self, who: str) -> float:
        """0 if the request is within the rate, else the seconds until it would be."""
        if self._rate <= 0:
            return 0.0
        now = self._clock()
        bucket = self._buckets.get(who)
        if bucket is None:
            bucket = self._buckets[who] = TokenBucket(self._rate, now)
        if bucket.available(now) < 1:
            return bucket.wait()
        bucket.take(1)
        return 0.0
