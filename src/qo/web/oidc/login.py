"""Logins: the attempt that binds one to a browser, the identity, the reasons for a rejection, cookies, the session.

The cookie `session` holds the secret of a session. The cookie `login` lasts for one login at the provider. Both are
HttpOnly, and Secure with the prefix `__Host-` if browsers use https. The session cookie is SameSite=Strict, because the
page sends all requests itself. The login cookie is Lax, because the provider redirects the browser back.
"""

from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import quote, unquote

from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie

from qo.clock import Clock
from qo.engine import Engine
from qo.errors import InvalidSetting
from qo.ids import new_token
from qo.web.callers import Caller
from qo.web.oidc.sessions import OpenedSession, SessionStore, csrf_token_of
from qo.web.oidc.settings import OidcSettings, check_oidc

LoginProblem = Literal["provider_down", "state", "denied", "invalid", "no_role", "store"]

_SECRET_LENGTH = 64
_MAX_VIEW = 300  # characters of the view shown after the login


class LoginRefused(Exception):
    """A rejected login. The page shows a text for the problem; the detail is logged."""

    def __init__(self, problem: LoginProblem, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem


class Identity(NamedTuple):
    subject: str
    name: str
    groups: tuple[str, ...]


class LoginAttempt(NamedTuple):
    """All values derive from the secret in the cookie, so that the server stores nothing for unfinished logins."""

    secret: str
    view: str  # the fragment of the URL, such as /tasks?status=failed

    @property
    def state(self) -> str:
        return self._derived("state")

    @property
    def nonce(self) -> str:
        return self._derived("nonce")

    @property
    def code_verifier(self) -> str:
        return self._derived("verifier")

    def _derived(self, what: str) -> str:
        return sha256(f"{what} {self.secret}".encode()).hexdigest()

    def to_cookie(self) -> str:
        return self.secret + quote(self.view, safe="/")


def new_attempt(view: str) -> LoginAttempt:
    is_view = view.startswith("/") and len(view) <= _MAX_VIEW and view.isprintable()
    return LoginAttempt(new_token() + new_token(), view if is_view else "/")


def attempt_in(cookie: str) -> LoginAttempt | None:
    """The attempt in the cookie; None if the cookie is missing or expired."""
    secret, view = cookie[:_SECRET_LENGTH], unquote(cookie[_SECRET_LENGTH:])
    if len(secret) < _SECRET_LENGTH:
        return None
    return LoginAttempt(secret, view if view.startswith("/") else "/")


LOGIN_LIFETIME = 600.0  # seconds for the login at the provider
CookieKind = Literal["session", "login"]


def cookie_name(kind: CookieKind, *, secure: bool) -> str:
    return f"__Host-qo-{kind}" if secure else f"qo-{kind}"


def read_cookie(connection: ASGIConnection[Any, Any, Any, Any], kind: CookieKind, *, secure: bool) -> str:
    return connection.cookies.get(cookie_name(kind, secure=secure), "")


def make_cookie(kind: CookieKind, value: str, *, secure: bool, lifetime: float) -> Cookie:
    """A lifetime of 0 deletes the cookie."""
    return Cookie(
        key=cookie_name(kind, secure=secure),
        value=value,
        path="/",
        max_age=int(lifetime),
        httponly=True,
        secure=secure,
        samesite="strict" if kind == "session" else "lax",
    )


class LoginProvider(Protocol):
    async def login_url(self, attempt: LoginAttempt, redirect_uri: str) -> str: ...

    async def identify(self, code: str, attempt: LoginAttempt, redirect_uri: str) -> Identity: ...

    async def logout_url(self, redirect_uri: str) -> str | None: ...


class LoginService:
    def __init__(self, engine: Engine, settings: OidcSettings, clock: Clock) -> None:
        self.settings = check_oidc(settings)
        self.sessions = SessionStore(engine, clock, self.settings)
        self.provider: LoginProvider = _provider(settings, clock)

    def session_secret(self, connection: ASGIConnection[Any, Any, Any, Any]) -> str:
        """The secret in the session cookie; empty if there is none."""
        return read_cookie(connection, "session", secure=self.settings.is_secure)

    def csrf_token(self, connection: ASGIConnection[Any, Any, Any, Any], caller: Caller) -> str | None:
        """The CSRF token that the page of a logged-in user sends with every action."""
        return csrf_token_of(self.session_secret(connection)) if caller.kind == "user" else None

    async def open_session(self, identity: Identity) -> OpenedSession:
        """Raises LoginRefused if none of the user's groups has a role."""
        if not self.settings.rights_of(identity.groups).may_look:
            groups = ", ".join(identity.groups) or "none"
            raise LoginRefused("no_role", f"{identity.name!r} has no role here; groups: {groups:.500}")
        return await self.sessions.open(
            subject=identity.subject,
            name=identity.name,
            groups=[group for group in identity.groups if self.settings.knows(group)],
            lifetime=self.settings.session_lifetime,
        )


def _provider(settings: OidcSettings, clock: Clock) -> Any:
    try:
        from qo.web.oidc.provider import OidcProvider  # noqa: PLC0415 - needs the extra `oidc`
    except ImportError as error:
        raise InvalidSetting("logins need additional packages: pip install 'qo-queue[oidc]'") from error
    return OidcProvider(settings, clock)
