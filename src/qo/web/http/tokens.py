"""Bearer tokens, and when each was last used. One note holds the hashes; the token itself is shown once and not stored.

The times of use are kept in memory and written about once a minute to a separate note, so that a server needs no
permission to write the tokens.

Tokens of earlier versions are in the note `tokens`, which every role of a bucket could write. They are not accepted. An
administrator checks them, and moves or discards them with `qo migrate --tokens`.
"""

import asyncio
import logging
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

import msgspec
from msgspec import Struct

from qo import notes
from qo.engine import Engine
from qo.errors import Conflict, InvalidSetting, NameNotFound, QoError
from qo.ids import new_token
from qo.model import ADMIN_NOTES, NEW, Note, check_name, check_names, check_number, check_types
from qo.notes import TOKENS, Instant
from qo.web.callers import AccessLimits, Caller, Scope

log = logging.getLogger("qo.web")
TOKEN_USES = f"{ADMIN_NOTES}token-uses"  # when each token was last used
MAX_TOKENS = 1000  # one note holds all tokens, and every server keeps them in memory
_MAX_LIMITS = 100  # queues, and types, of one token
_PREFIX = "qo_"  # lets people and secret scanners recognise a leaked token
WRITE_INTERVAL = 60.0  # seconds
OLD_TOKENS = "tokens"


class Token(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    digest: str  # SHA-256 of the token, in hex
    scopes: frozenset[Scope]
    queues: frozenset[str] = frozenset()  # empty: all
    types: frozenset[str] = frozenset()  # empty: all
    created_at: float
    created_by: str = ""  # such as alice@build1; empty if unknown
    expires_at: float | None = None

    def caller(self) -> Caller:
        """The caller that this token identifies."""
        return Caller(
            id=self.id,
            name=self.name,
            kind="token",
            scopes=self.scopes,
            limits=AccessLimits(queues=self.queues, types=self.types),
            expires_at=self.expires_at,
        )


class Tokens(Struct, frozen=True, kw_only=True):
    tokens: tuple[Token, ...] = ()
    existed: bool = False  # a token has existed; from then on every request needs one

    def find(self, which: str) -> Token | None:
        """The token with this name or id."""
        return next((token for token in self.tokens if which in (token.name, token.id)), None)


class Created(NamedTuple):
    token: Token
    secret: str


async def read_tokens(engine: Engine) -> Tokens:
    """Raises InvalidSetting if the store only has tokens of earlier versions."""
    note = await engine.read_note(TOKENS)
    if note is None:
        await refuse_old_tokens(engine)
        return Tokens()
    return Tokens(tokens=notes.decode(note, Tokens).tokens, existed=True)  # older versions did not write `existed`


async def create_token(
    engine: Engine,
    name: str,
    scopes: Iterable[Scope],
    *,
    now: float,
    lifetime: float | None = None,
    queues: Iterable[str] = (),
    types: Iterable[str] = (),
    created_by: str = "",
) -> Created:
    """Raises InvalidSetting if the name is taken, or if the scopes and the limits do not go together."""
    if lifetime is not None:
        check_number("expires", lifetime, above=0.0)
    secret = f"{_PREFIX}{new_token()}{new_token()}"  # 256 bits
    token = Token(
        id=new_token()[:8],
        name=check_name("name", name),
        digest=digest_of(secret),
        scopes=frozenset(scopes),
        queues=check_limit("queue", check_names("queue", queues)),
        types=check_limit("type", check_types("type", types)),
        created_at=now,
        created_by=created_by,
        expires_at=None if lifetime is None else now + lifetime,
    )
    if Scope.ENGINE in token.scopes and (token.queues or token.types):
        raise InvalidSetting(
            "the scope engine gives access to the whole store and cannot be limited to queues or types; "
            "remove --queue and --type, or use the scope work"
        )

    def added(before: Tokens) -> Tokens:
        if any(known.name == name for known in before.tokens):
            raise InvalidSetting(f"a token called {name!r} already exists; revoke it first, or choose another name")
        if len(before.tokens) >= MAX_TOKENS:
            raise InvalidSetting(f"there are {MAX_TOKENS} tokens, which is the limit; revoke some")
        return Tokens(tokens=(*before.tokens, token), existed=True)

    if await engine.read_note(TOKENS) is None:
        await refuse_old_tokens(engine)
    await notes.change(engine, TOKENS, Tokens, added)
    return Created(token, secret)


def check_limit(field: str, names: tuple[str, ...]) -> frozenset[str]:
    if len(names) > _MAX_LIMITS:
        raise InvalidSetting(f"a token or role can have at most {_MAX_LIMITS} {field}s; this one has {len(names)}")
    return frozenset(names)


async def revoke_token(engine: Engine, which: str) -> Token:
    """Delete the token with this name or id. Servers require a token even if this was the last one."""
    gone: list[Token] = []

    def without(before: Tokens) -> Tokens:
        gone[:] = [token for token in before.tokens if which in (token.name, token.id)]
        if not gone:
            raise NameNotFound(f"there is no token called {which!r:.80}")
        return Tokens(tokens=tuple(token for token in before.tokens if token not in gone), existed=True)

    await notes.change(engine, TOKENS, Tokens, without)
    return gone[0]


async def forget_tokens(engine: Engine) -> int:
    """Delete all tokens and the record that any existed: new servers admit local requests without a token."""
    tokens = (await read_tokens(engine)).tokens
    await engine.drop_note(TOKENS)
    return len(tokens)


class KnownCallers:
    """The callers of all tokens, by the hash of the token."""

    def __init__(self, tokens: Tokens) -> None:
        self.existed = tokens.existed
        self._by_digest = {token.digest: token.caller() for token in tokens.tokens}
        self._ids = {caller.id for caller in self._by_digest.values()}

    def match(self, secret: str, now: float) -> Caller | None:
        """The caller with this secret, if the token has not expired.

        The lookup does not run in constant time. It compares SHA-256 hashes, so its duration reveals nothing about a
        secret: no one can choose a secret whose hash has a given prefix.
        """
        caller = self._by_digest.get(digest_of(secret))
        return caller if caller is not None and is_live(caller, now) else None

    def knows(self, caller_id: str) -> bool:
        return caller_id in self._ids


def is_live(caller: Caller, now: float) -> bool:
    return caller.expires_at is None or now < caller.expires_at


def digest_of(secret: str) -> str:
    return sha256(secret.encode(errors="surrogatepass")).hexdigest()


class TokenUses(Struct, frozen=True, kw_only=True):
    used_at: dict[str, float] = {}  # by token id


class TokenUseRecorder:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: dict[str, float] = {}  # times of use since the last write, by token id

    def record(self, token_id: str, now: float) -> None:
        self._seen[token_id] = now

    async def run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_INTERVAL)
            await self.flush()

    async def flush(self) -> None:
        """Write the times since the last write. An error of the store is logged and does not affect requests."""
        seen, self._seen = self._seen, {}
        if not seen:
            return
        try:
            known = {token.id for token in (await read_tokens(self._engine)).tokens}

            def merged(before: TokenUses) -> TokenUses:
                """The latest time of several servers, only of tokens that still exist."""
                used_at = before.used_at | {
                    token_id: max(at, before.used_at.get(token_id, 0.0)) for token_id, at in seen.items()
                }
                return TokenUses(used_at={each: at for each, at in used_at.items() if each in known})

            await notes.change(self._engine, TOKEN_USES, TokenUses, merged)
        except QoError as error:
            log.warning("cannot record when tokens were last used: %s", error)
            self._seen = seen | self._seen


async def read_token_uses(engine: Engine) -> TokenUses:
    return await notes.read_or(engine, TOKEN_USES, TokenUses, TokenUses())


class OldToken(Struct, frozen=True):
    """What an administrator needs to recognise a token."""

    name: str
    scopes: list[str] = []
    created_at: Instant | None = None


class _OldTokens(Struct, frozen=True):
    tokens: list[OldToken]


async def refuse_old_tokens(engine: Engine) -> None:
    """Raise InvalidSetting if the store has tokens of an earlier version. Call it if the store has no other tokens.

    Without this check, a server whose tokens were not moved yet would accept requests without a token.
    """
    if await engine.read_note(OLD_TOKENS) is not None:
        raise InvalidSetting(
            "this store has tokens of an earlier version, which every role of a bucket could write; they are not "
            "accepted. List them with: qo migrate --check, then keep them with: qo migrate --tokens move, "
            "or remove them with: qo migrate --tokens discard"
        )


async def find_old_tokens(engine: Engine) -> list[OldToken] | None:
    """The tokens of earlier versions. None: there is no such note. An empty list: the note cannot be read."""
    note = await engine.read_note(OLD_TOKENS)
    return None if note is None else _tokens_in(note)


async def move_old_tokens(engine: Engine) -> list[OldToken]:
    """Accept the old tokens from now on. Raises InvalidSetting if the store has new tokens already."""
    note = await engine.read_note(OLD_TOKENS)
    if note is None:
        return []
    moved = _tokens_in(note)
    if not moved:
        raise InvalidSetting("the tokens of the earlier version cannot be read; run: qo migrate --tokens discard")
    try:
        await engine.write_note(TOKENS, note.data, expected=NEW)
    except Conflict as error:
        raise InvalidSetting(
            "the store has new tokens already, so the tokens of the earlier version are not moved; run: "
            "qo migrate --tokens discard"
        ) from error
    await engine.drop_note(OLD_TOKENS)
    return moved


async def discard_old_tokens(engine: Engine) -> list[OldToken]:
    note = await engine.read_note(OLD_TOKENS)
    if note is None:
        return []
    await engine.drop_note(OLD_TOKENS)
    return _tokens_in(note)


def _tokens_in(note: Note) -> list[OldToken]:
    try:
        return msgspec.json.decode(note.data, type=_OldTokens).tokens
    except ValueError:
        return []
