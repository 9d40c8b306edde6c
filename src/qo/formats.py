"""The format of a store: which builds of qo may use it.

A store records the number of its format, the oldest number whose builds may use it, and the qo that introduced it. A
step to the next number is *additive* if builds from before it may ignore and keep what it adds: then that oldest
number stays. Every other step makes the store unusable for them. See docs/formats.md.
"""

from collections.abc import Container

from msgspec import Struct

from qo.errors import NewerFormat
from qo.version import __version__


class Format(Struct, frozen=True, kw_only=True):
    """As a store records it."""

    format: int
    since: int = 0  # builds that know this number may use the store; 0: only those that know its format
    qo: str = ""  # the version that introduced it


def format_of(number: int, *, additive: Container[int] = ()) -> Format:
    """What this build records for a format that it knows."""
    since = next(step for step in range(number, -1, -1) if step not in additive)
    return Format(format=number, since=since, qo=__version__)


def check_format(place: object, found: Format, known: int) -> None:
    """Raise NewerFormat for a store that this build must not touch."""
    if (found.since or found.format) > known:
        needed = f"use qo {found.qo} or newer" if found.qo else "upgrade qo"
        raise NewerFormat(
            f"{place} was written by a newer qo (format {found.format}; this is qo {__version__}, which knows formats"
            f" up to {known}); {needed}"
        )
