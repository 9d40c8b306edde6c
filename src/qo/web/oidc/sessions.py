"""Sessions of logged-in users.

The store keeps them by the hash of their secret, so that all servers accept them, they survive a restart, and a logout
ends them on all servers. One note holds all sessions, and the store is read at most once a second, regardless of the
cookies in requests.

A session stores the groups of the user. Each server derives the permissions from its own settings, so a session ends
when its groups no longer have a role.
"""

import asyncio
import hmac
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from qo import notes
from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.ids import new_token
from qo.model import ADMIN_NOTES
from qo.web.callers import Caller, Scope
from qo.web.http.tokens import digest_of
from qo.web.oidc.settings import GroupRights, OidcSettings

SESSIONS = f"{ADMIN_NOTES}sessions"
MAX_SESSIONS = 1_000  # beyond this, the oldest sessions end
_MAX_AGE = 1.0  # seconds for which a read of the sessions is reused
_SECRET_LENGTH = 64  # characters


class UserSession(Struct, frozen=True, kw_only=True):
    digest: str  # SHA-256 of the secret, in hex
    subject: str  # the permanent id of the user at the provider
    name: str
    scopes: frozenset[Scope]  # at login, for the whole store; used if the session has no groups
    groups: tuple[str, ...] = ()  # those that had a role at login
    created_at: float
    expires_at: float

    @property
    def id(self) -> str:
        """The public id. It reveals nothing about the secret."""
        return self.digest[:16]

    def rights(self, settings: OidcSettings) -> GroupRights:
        return settings.rights_of(self.groups) if self.groups else GroupRights(self.scopes, ())

    def caller(self, settings: OidcSettings) -> Caller | None:
        """The caller; None if none of the groups has a role now."""
        rights = self.rights(settings)
        if not rights.may_look:
            return None
        return Caller(
            id=f"user-{self.id}",
            name=self.name,
            kind="user",
            scopes=rights.scopes,
            limited_roles=rights.limited_roles,
            expires_at=self.expires_at,
        )


class UserSessions(Struct, frozen=True, kw_only=True):
    sessions: tuple[UserSession, ...] = ()


class OpenedSession(NamedTuple):
    session: UserSession
    secret: str


CSRF_HEADER = "X-CSRF-Token"


def csrf_token_of(secret: str) -> str:
    """The token that the page sends with every action. Pages of other origins cannot read it."""
    return digest_of(f"csrf {secret}")


def is_csrf_token(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), csrf_token_of(secret).encode())


async def read_sessions(engine: Engine, now: float) -> list[UserSession]:
    """The sessions that have not expired, oldest first."""
    stored = await notes.read(engine, SESSIONS, UserSessions)
    return [each for each in stored.sessions if each.expires_at > now]


async def end_sessions(engine: Engine, is_chosen: Callable[[UserSession], bool]) -> list[UserSession]:
    """End the chosen sessions and return them. Servers apply it within a second."""
    ended: list[UserSession] = []

    def without(before: UserSessions) -> UserSessions:
        ended[:] = [each for each in before.sessions if is_chosen(each)]
        return UserSessions(sessions=tuple(each for each in before.sessions if each not in ended))

    if await engine.read_note(SESSIONS) is not None:
        await notes.change(engine, SESSIONS, UserSessions, without)
    return ended


class SessionStore:
    def __init__(self, engine: Engine, clock: Clock, settings: OidcSettings, *, elapsed: Clock = boot_clock) -> None:
        self._engine, self._clock, self._settings, self._elapsed = engine, clock, settings, elapsed
        self._callers: dict[str, Caller] = {}  # by digest
        self._ids: frozenset[str] = frozenset()
        self._read_at = -math.inf
        self._reading = asyncio.Lock()

    async def open(self, *, subject: str, name: str, groups: Sequence[str], lifetime: float) -> OpenedSession:
        secret, now = new_token() + new_token(), self._clock()  # 256 bits
        session = UserSession(
            digest=digest_of(secret),
            subject=subject,
            name=name,
            scopes=self._settings.rights_of(groups).scopes,
            groups=tuple(groups),
            created_at=now,
            expires_at=now + lifetime,
        )

        def opened(before: UserSessions) -> UserSessions:
            live = [each for each in before.sessions if each.expires_at > now]
            return UserSessions(sessions=(*live[-MAX_SESSIONS + 1 :], session))

        await notes.change(self._engine, SESSIONS, UserSessions, opened)
        self._read_at = -math.inf
        return OpenedSession(session, secret)

    async def close(self, secret: str) -> None:
        digest = digest_of(secret)
        await end_sessions(self._engine, lambda each: each.digest == digest)
        self._read_at = -math.inf

    async def caller(self, secret: str) -> Caller | None:
        """The user of the session; None if it has ended or does not exist."""
        if len(secret) != _SECRET_LENGTH:
            return None
        digest, asked_at = digest_of(secret), self._elapsed()
        await self._read()
        if digest not in self._callers and self._read_at < asked_at:
            await self._read(since=asked_at)  # another server may have created the session just now
        caller = self._callers.get(digest)
        return caller if caller is not None and self._is_live(caller) else None

    async def is_open(self, caller: Caller) -> bool:
        await self._read()
        return caller.id in self._ids and self._is_live(caller)

    def _is_live(self, caller: Caller) -> bool:
        return caller.expires_at is not None and self._clock() < caller.expires_at

    async def _read(self, *, since: float = -math.inf) -> None:
        """Read the sessions, unless they were read after `since` and recently. At most once in `_MAX_AGE` seconds."""
        if self._is_fresh(since):
            return
        async with self._reading:
            if self._is_fresh(since):
                return
            await asyncio.sleep(self._read_at + _MAX_AGE - self._elapsed())
            began_at = self._elapsed()
            stored = await notes.read_or(self._engine, SESSIONS, UserSessions, UserSessions())
            found = {each.digest: each.caller(self._settings) for each in stored.sessions}
            self._callers = {digest: caller for digest, caller in found.items() if caller is not None}
            self._ids = frozenset(caller.id for caller in self._callers.values())
            self._read_at = began_at

    def _is_fresh(self, since: float) -> bool:
        return self._read_at >= since and self._elapsed() - self._read_at < _MAX_AGE
