"""The format of a store and the schema of its tables, which decide which versions of qo may use it.

A store records its format number, the oldest number whose builds may use it, and the qo version that introduced it. A
step to the next number is *additive* if older builds may ignore and preserve what it adds; the oldest number then
stays. Every other step makes the store unusable for older builds. See docs/formats.md.
"""

from collections.abc import Container
from typing import NamedTuple

from msgspec import Struct

from qo.errors import NewerFormat
from qo.version import __version__


class Format(Struct, frozen=True, kw_only=True):
    """The format that a store records."""

    format: int
    since: int = 0  # builds that know this number may use the store; 0: only builds that know `format`
    qo: str = ""  # the version that introduced the format


def format_of(number: int, *, additive: Container[int] = ()) -> Format:
    """The record that this build writes for a format it knows."""
    since = next(step for step in range(number, -1, -1) if step not in additive)
    return Format(format=number, since=since, qo=__version__)


def check_format(place: object, found: Format, known: int) -> None:
    """Raise NewerFormat if this build must not use the store."""
    if (found.since or found.format) > known:
        needed = f"use qo {found.qo} or newer" if found.qo else "upgrade qo"
        raise NewerFormat(
            f"{place} was written by a newer qo (format {found.format}; this is qo {__version__}, which knows formats"
            f" up to {known}); {needed}"
        )


class Schema(NamedTuple):
    found: int  # 0: the store does not exist yet
    known: int

    @property
    def is_current(self) -> bool:
        return self.found >= self.known  # a newer schema that this qo may use needs no migration
