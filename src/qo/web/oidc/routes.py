"""`/auth`: login at the provider, the callback, and logout.

Browsers navigate to these routes, so errors are not returned as JSON. They redirect to the dashboard, which explains
the problem (`#/login?problem=...`).
"""

import asyncio
import hmac
import logging
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from litestar import Request, Response, Router, get, post
from litestar.datastructures import Cookie
from msgspec import Struct

from qo.errors import QoError
from qo.web.http.access import ANY_QUERY, LIMITED, PUBLIC, READ, caller_of
from qo.web.http.action_recorder import describe_action
from qo.web.http.problems import problems
from qo.web.http.server import server_of
from qo.web.oidc.login import (
    LOGIN_LIFETIME,
    Identity,
    LoginAttempt,
    LoginProblem,
    LoginRefused,
    LoginService,
    attempt_in,
    make_cookie,
    new_attempt,
    read_cookie,
)

log = logging.getLogger("qo.web")
_CALLBACK: Final = "/auth/callback"
_NOT_SET_UP: Final = "../ui/#/login?problem=not_set_up"
_MAX_QUERY = 4_096  # characters of a code or state
_STORE_TIMEOUT = 10.0  # seconds to store a session


class LoggedOut(Struct, frozen=True, kw_only=True):
    """`provider` is the URL that ends the session at the provider, null if there is none."""

    provider: str | None


@get("/login", opt=PUBLIC | ANY_QUERY, include_in_schema=False)
async def log_in(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Redirect the browser to the provider."""
    service = server_of(request).login
    if service is None:
        return _redirect(_NOT_SET_UP, [])
    attempt = new_attempt(request.query_params.get("view", "/"))
    try:
        url = await service.provider.login_url(attempt, _public_url(request, service) + _CALLBACK)
    except LoginRefused as error:
        return _refused(service, error.problem, str(error))
    secure = service.settings.is_secure
    cookie = make_cookie("login", attempt.to_cookie(), secure=secure, lifetime=LOGIN_LIFETIME)
    return _redirect(url, [cookie])


@get("/callback", opt=PUBLIC | ANY_QUERY, include_in_schema=False)
async def log_in_callback(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The provider redirects the browser here, with a code or an error."""
    server = server_of(request)
    service = server.login
    if service is None:
        return _redirect(_NOT_SET_UP, [])
    attempt = attempt_in(read_cookie(request, "login", secure=service.settings.is_secure))
    try:
        identity = await _identify(request, service, attempt)
        async with asyncio.timeout(_STORE_TIMEOUT):
            opened = await service.open_session(identity)
    except LoginRefused as error:
        return _refused(service, error.problem, str(error))
    except (QoError, TimeoutError) as error:
        return _refused(service, "store", str(error) or f"the store did not answer within {_STORE_TIMEOUT:g} s")
    rights = opened.session.rights(service.settings)
    caller = opened.session.caller(service.settings)
    with suppress(TimeoutError):  # the record is still written, or the failure logged
        async with asyncio.timeout(_STORE_TIMEOUT):
            await server.action_recorder.record(request.scope, "login", caller=caller, target=str(rights))
    secure, view = service.settings.is_secure, "/" if attempt is None else attempt.view
    return _redirect(
        f"../ui/#{quote(view, safe='/?=&%+:,.~-')}",
        [
            make_cookie("session", opened.secret, secure=secure, lifetime=service.settings.session_lifetime),
            make_cookie("login", "", secure=secure, lifetime=0),
        ],
    )


async def _identify(request: Request[Any, Any, Any], service: LoginService, attempt: LoginAttempt | None) -> Identity:
    """The identity of the returning user. Raises LoginRefused."""
    given = {name: request.query_params.get(name, "")[:_MAX_QUERY] for name in ("state", "code", "error", "iss")}
    issuer = service.settings.issuer
    if attempt is None or not hmac.compare_digest(attempt.state.encode(), given["state"].encode()):
        raise LoginRefused("state", "the response of the provider does not belong to a login of this browser")
    if given["iss"] and given["iss"] != issuer:
        raise LoginRefused("invalid", f"the response is from {given['iss']!r:.200}, not from {issuer}")
    if given["error"] or not given["code"]:
        raise LoginRefused("denied", f"the provider responded {given['error'] or 'without a code'!r:.200}")
    return await service.provider.identify(given["code"], attempt, _public_url(request, service) + _CALLBACK)


@post("/logout", opt=READ | LIMITED, status_code=200, responses=problems())
async def log_out(request: Request[Any, Any, Any]) -> Response[LoggedOut]:
    """End the session of the caller on all servers. Has no effect for a token."""
    service, action = server_of(request).login, describe_action(request)
    action.verb = "logout"
    if service is None or caller_of(request).kind != "user":
        action.number = 0  # nothing to record
        return Response(LoggedOut(provider=None), status_code=200, media_type="application/json")
    await service.sessions.close(service.session_secret(request))
    try:
        provider = await service.provider.logout_url(_public_url(request, service) + "/ui/")
    except LoginRefused as error:  # the session of this server has ended anyway
        log.warning("cannot end the session at the provider: %s", error)
        provider = None
    return Response(
        LoggedOut(provider=provider),
        status_code=200,
        cookies=[make_cookie("session", "", secure=service.settings.is_secure, lifetime=0)],
        media_type="application/json",
    )


def _public_url(request: Request[Any, Any, Any], service: LoginService) -> str:
    """The URL of this server for browsers. The Host header was checked against the allowed names."""
    return service.settings.public_url.rstrip("/") or f"http://{request.headers['host']}"


def _redirect(url: str, cookies: list[Cookie]) -> Response[bytes]:
    return Response(b"", status_code=302, headers={"Location": url}, cookies=cookies, media_type="text/plain")


def _refused(service: LoginService, problem: LoginProblem, detail: str) -> Response[bytes]:
    log.warning("login rejected (%s): %s", problem, detail, extra={"problem": problem})
    gone = make_cookie("login", "", secure=service.settings.is_secure, lifetime=0)
    return _redirect(f"../ui/#/login?problem={problem}", [gone])


router = Router(path="/auth", route_handlers=[log_in, log_in_callback, log_out], tags=["auth"])
