"""One login: the attempt that binds it to a browser, the identity, the reasons for a rejection, and the cookies.

The cookie `session` holds the secret of a session. The cookie `login` lasts for one login at the provider. Both are
HttpOnly, and Secure with the prefix `__Host-` if browsers use https. The session cookie is SameSite=Strict, because the
page sends all requests itself. The login cookie is Lax, because the provider redirects the browser back.
"""

from hashlib import sha256
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie

from qo.ids import new_token

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
