"""The parts of a login: the provider and the sessions."""

from typing import Any, Protocol

from litestar.connection import ASGIConnection

from qo.clock import Clock
from qo.engine import Engine
from qo.errors import InvalidSetting
from qo.web.callers import Caller
from qo.web.oidc.login import Identity, LoginAttempt, LoginRefused, read_cookie
from qo.web.oidc.sessions import OpenedSession, SessionStore, csrf_token_of
from qo.web.oidc.settings import OidcSettings, check_oidc


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
