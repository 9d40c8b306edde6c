"""Two cookies. `session` is the secret of a session. `login` lasts for one way to the provider and back.

Both are HttpOnly, and Secure with the prefix `__Host-` where browsers speak https. The session's is SameSite=Strict:
the page asks for everything itself, so the cookie is never needed on the way from another site. The login's is
Lax, because the provider sends the browser back.
"""

from typing import Any, Literal

from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie

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
