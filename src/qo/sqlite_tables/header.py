"""The first bytes of a database: whose it is, read without SQLite, which would leave traces."""

from struct import unpack_from
from typing import NamedTuple

from qo.errors import StorageError

APPLICATION_ID = int.from_bytes(b"qo-q", "big")
VERSION = 6  # of the schema; the number of the last file in schema/
ADDITIVE = frozenset({3, 4})  # files in schema/ that only add what earlier builds may ignore and keep
HEADER = 100  # bytes

_MAGIC = b"SQLite format 3\x00"
_LOG = 2  # in byte 18: there is a write-ahead log


class Header(NamedTuple):
    version: int
    ours: bool


def parse_header(place: object, head: bytes) -> Header | None:
    """What a database says it is. None: it is blank."""
    if not head:
        return None
    if len(head) < HEADER or not head.startswith(_MAGIC):
        raise StorageError(f"{place} is not a SQLite database; name another file")
    (cookie,), (version,), (application,) = (unpack_from(">I", head, offset) for offset in (40, 60, 68))
    with_log = head[18] == _LOG  # then what the database holds may not be in this file yet
    blank = not (cookie or version or application or with_log)
    return None if blank else Header(version, application == APPLICATION_ID)


def check_header(place: object, head: bytes) -> Header | None:
    """Refuse what is not ours. None: there is no queue in it yet."""
    header = parse_header(place, head)
    if header is not None and not header.ours:
        raise StorageError(f"{place} is a SQLite database of another application; name another file")
    return header
