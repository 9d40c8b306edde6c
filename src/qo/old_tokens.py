"""Tokens in the place of earlier versions: the note `tokens`, which every role of a bucket could write.

They are never used from there. An administrator looks at them and moves or discards them, with `qo migrate --tokens`.
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
    """For a store without tokens in their present place: raises InvalidSetting if there are some in the old one.

    Without this, a server whose tokens were not moved yet would take the store for one without tokens, and be open.
    """
    if await engine.read_note(OLD_TOKENS) is not None:
        raise InvalidSetting(
            "the tokens of this store lie where workers and producers of a bucket could write them, and are not used; "
            "look at them with: qo migrate --check, then keep them with: qo migrate --tokens move, "
            "or forget them with: qo migrate --tokens discard"
        )


async def find_old_tokens(engine: Engine) -> list[OldToken] | None:
    """None: there is nothing in the old place. An empty list: what is there holds no token that can be read."""
    note = await engine.read_note(OLD_TOKENS)
    return None if note is None else _tokens_in(note)


async def move_old_tokens(engine: Engine) -> list[OldToken]:
    """Trust what is in the old place from now on. Raises InvalidSetting if the present place is taken."""
    note = await engine.read_note(OLD_TOKENS)
    if note is None:
        return []
    moved = _tokens_in(note)
    if not moved:
        raise InvalidSetting("what is in the old place of the tokens cannot be read; run: qo migrate --tokens discard")
    try:
        await engine.write_note(TOKENS, note.data, expected=NEW)
    except Conflict as error:
        raise InvalidSetting(
            "there are tokens in the present place already, so the old ones are not moved; run: "
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
