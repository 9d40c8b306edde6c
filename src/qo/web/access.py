"""Who may call what. Each route names a scope; one that names none is for admins."""

import asyncio
import ipaddress
import math
from functools import lru_cache
from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException, TooManyRequestsException

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.web.allowance import Allowance
from qo.web.queries import refuse_unknown
from qo.web.settings import WebSettings
from qo.web.tokens import Scope, Token, Tokens, match, read_tokens

Connection = ASGIConnection[Any, Any, Any, Any]

PUBLIC = {"public": True}
READ = {"scope": Scope.READ}
SUBMIT = {"scope": Scope.SUBMIT}
WORK = {"scope": Scope.WORK}
ADMIN = {"scope": Scope.ADMIN}

_FRESH = 1.0  # seconds the stored tokens are remembered: so late a revocation may be heeded
_ANYONE = "anyone"


class Gate:
    def __init__(self, engine: Engine, settings: WebSettings, clock: Clock) -> None:
        self._engine, self._settings, self._clock = engine, settings, clock
        self._allowance = Allowance(settings.rate_limit)
        self._known = Tokens()
        self._known_at = -math.inf
        self._reading = asyncio.Lock()

    async def admit(self, connection: Connection, scope: Scope) -> None:
        """Let the request pass, or raise the answer it gets."""
        tokens = await self._tokens()
        secret = bearer(connection)
        if secret is None and self._is_open(tokens, connection):
            who, scopes = _ANYONE, frozenset(Scope)
        else:
            token = self._token(tokens, secret)
            if not token.allows(scope):
                raise PermissionDeniedException(f"this needs a token with the scope {scope}")
            who, scopes = token.id, token.scopes
        connection.scope["qo_token"] = who  # type: ignore[typeddict-unknown-key]  # for the log
        connection.scope["qo_scopes"] = scopes  # type: ignore[typeddict-unknown-key]
        wait = self._allowance.take(who)
        if wait:
            raise TooManyRequestsException("too many requests", headers={"Retry-After": str(math.ceil(wait))})

    def _token(self, tokens: Tokens, secret: str | None) -> Token:
        token = None if secret is None else match(tokens, secret, self._clock())
        if token is None:
            why = "send a token: Authorization: Bearer ..." if secret is None else "this token is unknown or expired"
            raise NotAuthorizedException(why, headers={"WWW-Authenticate": "Bearer"})
        return token

    def _is_open(self, tokens: Tokens, connection: Connection) -> bool:
        """Without any token this machine may call, and nobody else.

        A server that answers to another name is reached from elsewhere, be it through a proxy on this machine.
        """
        if self._settings.token_required or self._settings.hosts or tokens.tokens:
            return False
        return connection.client is None or is_loopback(connection.client.host)

    async def _tokens(self) -> Tokens:
        if boot_clock() - self._known_at >= _FRESH:
            async with self._reading:
                if boot_clock() - self._known_at >= _FRESH:
                    self._known = await read_tokens(self._engine)
                    self._known_at = boot_clock()
        return self._known


def bearer(connection: Connection) -> str | None:
    kind, _, secret = connection.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None


def scopes_of(connection: Connection) -> frozenset[Scope]:
    """What an admitted caller may do."""
    scopes: frozenset[Scope] = connection.scope["qo_scopes"]  # type: ignore[typeddict-item]
    return scopes


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def admit(request: Request[Any, Any, Any]) -> None:
    """Before every route: nothing is read or parsed earlier. No guard, since Litestar copies the handler for each."""
    handler = request.route_handler
    if not handler.opt.get("public"):
        gate: Gate = request.app.state.gate
        await gate.admit(request, handler.opt.get("scope", Scope.ADMIN))
    if request.scope["query_string"]:
        refuse_unknown(list(request.query_params), handler)
