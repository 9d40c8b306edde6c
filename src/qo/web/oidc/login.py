"""One login: what binds it to a browser, who came back, and why somebody was refused."""

from hashlib import sha256
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie

from qo.ids import new_token

LoginProblem = Literal["provider_down", "state", "denied", "invalid", "no_role", "store"]

_SECRET_LENGTH = 64
_MAX_VIEW = 300  # characters of the address a person comes back to


class LoginRefused(Exception):
    """The page puts the problem into words; the detail is for the log."""

    def __init__(self, problem: LoginProblem, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem


class Identity(NamedTuple):
    subject: str
    name: str
    groups: tuple[str, ...]


class LoginAttempt(NamedTuple):
    """All out of the secret in the browser's cookie: a server keeps nothing for people who may never come back."""

    secret: str
    view: str  # the fragment of the address, such as /tasks?status=failed

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
    """The attempt a browser brings back; None: it was never sent, or too long ago."""
    secret, view = cookie[:_SECRET_LENGTH], unquote(cookie[_SECRET_LENGTH:])
    if len(secret) < _SECRET_LENGTH:
        return None
    return LoginAttempt(secret, view if view.startswith("/") else "/")


LOGIN_LIFETIME = 600.0  # seconds a person has at the provider
CookieKind = Literal["session", "login"]


def cookie_name(kind: CookieKind, *, secure: bool) -> str:
    return f"__Host-qo-{kind}" if secure else f"qo-{kind}"


def read_cookie(connection: ASGIConnection[Any, Any, Any, Any], kind: CookieKind, *, secure: bool) -> str:
    return connection.cookies.get(cookie_name(kind, secure=secure), "")


def make_cookie(kind: CookieKind, value: str, *, secure: bool, lifetime: float) -> Cookie:
    """With a lifetime of 0 the browser forgets it."""
    return Cookie(
        key=cookie_name(kind, secure=secure),
        value=value,
        path="/",
        max_age=int(lifetime),
        httponly=True,
        secure=secure,
        samesite="strict" if kind == "session" else "lax",
    )
