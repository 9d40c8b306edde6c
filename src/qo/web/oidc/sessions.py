"""Sessions of people who logged in. The store keeps them by the hash of their secret, so all servers know them, they
survive a restart, and logging out ends them everywhere. One note holds them all, as one holds the tokens: whatever a
request sends as its cookie, the store is read once a second at most.
"""

import asyncio
import hmac
import math
from typing import NamedTuple

from msgspec import Struct

from qo import notes
from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.ids import new_lease_id
from qo.model import ADMIN_NOTES
from qo.web.callers import Caller, Scope
from qo.web.tokens import digest_of

SESSIONS = f"{ADMIN_NOTES}sessions"
MAX_SESSIONS = 1_000  # at once; the oldest end
_FRESH = 1.0  # seconds the stored sessions are remembered
_FORM = 64  # characters of a secret


class UserSession(Struct, frozen=True, kw_only=True):
    digest: str  # SHA-256 of the secret, in hex
    subject: str  # as the provider calls the person, for ever
    name: str
    scopes: frozenset[Scope]
    created_at: float
    expires_at: float

    def caller(self) -> Caller:
        return Caller(
            id=f"user-{self.digest[:16]}",
            name=self.name,
            kind="user",
            scopes=self.scopes,
            expires_at=self.expires_at,
        )


class UserSessions(Struct, frozen=True, kw_only=True):
    sessions: tuple[UserSession, ...] = ()


class OpenedSession(NamedTuple):
    session: UserSession
    secret: str


CSRF_HEADER = "X-CSRF-Token"


def csrf_token_of(secret: str) -> str:
    """What a page must send with every action: a page from elsewhere cannot read it."""
    return digest_of(f"csrf {secret}")


def is_csrf_token(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), csrf_token_of(secret).encode())


class SessionStore:
    def __init__(self, engine: Engine, clock: Clock, *, elapsed: Clock = boot_clock) -> None:
        self._engine, self._clock, self._elapsed = engine, clock, elapsed
        self._callers: dict[str, Caller] = {}  # by digest
        self._ids: frozenset[str] = frozenset()
        self._read_at = -math.inf
        self._reading = asyncio.Lock()

    async def open(self, *, subject: str, name: str, scopes: frozenset[Scope], lifetime: float) -> OpenedSession:
        secret, now = new_lease_id() + new_lease_id(), self._clock()  # 256 bits
        session = UserSession(
            digest=digest_of(secret),
            subject=subject,
            name=name,
            scopes=scopes,
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

        def closed(before: UserSessions) -> UserSessions:
            return UserSessions(sessions=tuple(each for each in before.sessions if each.digest != digest))

        await notes.change(self._engine, SESSIONS, UserSessions, closed)
        self._read_at = -math.inf

    async def caller(self, secret: str) -> Caller | None:
        """The person whose session this is; None: it has ended, or there was none."""
        if len(secret) != _FORM:
            return None
        await self._read()
        caller = self._callers.get(digest_of(secret))
        return caller if caller is not None and self._is_live(caller) else None

    async def is_open(self, caller: Caller) -> bool:
        await self._read()
        return caller.id in self._ids and self._is_live(caller)

    def _is_live(self, caller: Caller) -> bool:
        return caller.expires_at is not None and self._clock() < caller.expires_at

    async def _read(self) -> None:
        if self._elapsed() - self._read_at < _FRESH:
            return
        async with self._reading:
            if self._elapsed() - self._read_at < _FRESH:
                return
            stored = await notes.read_or(self._engine, SESSIONS, UserSessions, UserSessions())
            self._callers = {each.digest: each.caller() for each in stored.sessions}
            self._ids = frozenset(caller.id for caller in self._callers.values())
            self._read_at = self._elapsed()
