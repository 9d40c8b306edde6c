"""Notes: small named documents with compare-and-set. Worker registrations, switches, limits, leadership."""

from typing import Final, NamedTuple

NEW: Final = "new"  # as `expected`: there must be nothing under this name yet
ANY: Final = "any"  # as `expected`: whatever is there is replaced


class Note(NamedTuple):
    name: str
    data: bytes
    version: str
