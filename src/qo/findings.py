"""What an examination of a store finds: one line each for `qo doctor`."""

from msgspec import Struct


class Finding(Struct, frozen=True):
    name: str
    ok: bool | None  # None: works, but take note
    detail: str  # one sentence: what is so, and if it is wrong what to do
