"""Bearer tokens: who may do what. One note holds their hashes; a token itself is shown once and kept nowhere."""

import hmac
from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from msgspec import Struct

from qo import notes
from qo.engine import Engine
from qo.errors import InvalidSetting
from qo.ids import new_lease_id
from qo.model import check_name

TOKENS = "tokens"
MOST = 1000  # one note holds them all, and a request is compared with each
_PREFIX = "qo_"  # so that people and scanners recognise a token that went astray


class Scope(StrEnum):
    READ = "read"  # look
    SUBMIT = "submit"  # bring tasks, and cancel them
    WORK = "work"  # be a worker
    ADMIN = "admin"  # everything


class Token(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    digest: str  # SHA-256 of the token, in hex
    scopes: frozenset[Scope]
    created_at: float
    expires_at: float | None = None

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


class Tokens(Struct, frozen=True, kw_only=True):
    tokens: tuple[Token, ...] = ()


class Created(NamedTuple):
    token: Token
    secret: str


async def read_tokens(engine: Engine) -> Tokens:
    return await notes.read(engine, TOKENS, Tokens)


async def create_token(
    engine: Engine, name: str, scopes: Iterable[Scope], *, now: float, lifetime: float | None = None
) -> Created:
    secret = f"{_PREFIX}{new_lease_id()}{new_lease_id()}"  # 256 bits
    token = Token(
        id=new_lease_id()[:8],
        name=check_name("name", name),
        digest=_digest(secret),
        scopes=frozenset(scopes),
        created_at=now,
        expires_at=None if lifetime is None else now + lifetime,
    )

    def added(before: Tokens) -> Tokens:
        if any(known.name == name for known in before.tokens):
            raise InvalidSetting(f"there is a token called {name!r} already; revoke it first, or choose another name")
        if len(before.tokens) >= MOST:
            raise InvalidSetting(f"there are {MOST} tokens already; revoke some")
        return Tokens(tokens=(*before.tokens, token))

    await notes.change(engine, TOKENS, Tokens, added)
    return Created(token, secret)


async def revoke_token(engine: Engine, which: str) -> Token:
    """Forget the token with this name or id."""
    gone: list[Token] = []

    def without(before: Tokens) -> Tokens:
        gone[:] = [token for token in before.tokens if which in (token.name, token.id)]
        if not gone:
            raise InvalidSetting(f"there is no token called {which!r:.80}")
        return Tokens(tokens=tuple(token for token in before.tokens if token not in gone))

    await notes.change(engine, TOKENS, Tokens, without)
    return gone[0]


def match(tokens: Tokens, secret: str, now: float) -> Token | None:
    """The live token with this secret. Every stored hash is compared, in constant time."""
    digest = _digest(secret)
    found = None
    for token in tokens.tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found if found is not None and (found.expires_at is None or now < found.expires_at) else None


def _digest(secret: str) -> str:
    return sha256(secret.encode(errors="surrogatepass")).hexdigest()
