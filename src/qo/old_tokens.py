"""Tokens of earlier versions, in the note `tokens`, which every role of a bucket could write.

They are not accepted. An administrator checks them, and moves or discards them with `qo migrate --tokens`.
"""

import msgspec
from msgspec import Struct

from qo.engine import Engine
from qo.errors import Conflict, InvalidSetting
from qo.model import NEW, Note
from qo.notes import TOKENS, Instant

OLD_TOKENS = "tokens"


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
