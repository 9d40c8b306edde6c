"""The header of a database, which identifies its application, and settings for databases that others can write.

The header is read without SQLite, which would create files.
"""

from struct import unpack_from
from typing import NamedTuple

import apsw

from qo.errors import StorageError

APPLICATION_ID = int.from_bytes(b"qo-q", "big")
VERSION = 9  # of the schema
FILE_VERSION = 11  # of the schema in a file; the number of the last file in schema/
ADDITIVE = frozenset({3, 4, 7, 8, 9})  # files in schema/ that only add what earlier builds may ignore and preserve
LOG_ADDITIVE = ADDITIVE - {9}  # the same in a log: an earlier build would not find the tasks of segments
HEADER = 100  # bytes
_MAGIC = b"SQLite format 3\x00"
_LOG = 2  # in byte 18: write-ahead log mode


class Header(NamedTuple):
    version: int
    is_ours: bool


def parse_header(place: object, head: bytes) -> Header | None:
    """Parse the header. None: the database is blank."""
    if not head:
        return None
    if len(head) < HEADER or not head.startswith(_MAGIC):
        raise StorageError(f"{place} is not a SQLite database; name another file")
    (cookie,), (version,), (application,) = (unpack_from(">I", head, offset) for offset in (40, 60, 68))
    with_log = head[18] == _LOG  # the content may still be in the log
    blank = not (cookie or version or application or with_log)
    return None if blank else Header(version, application == APPLICATION_ID)


def check_header(place: object, head: bytes) -> Header | None:
    """Parse the header. None: it holds no queue yet. Raises StorageError for a database of another application."""
    header = parse_header(place, head)
    if header is not None and not header.is_ours:
        raise StorageError(f"{place} is a SQLite database of another application; name another file")
    return header


def ignore_code(db: apsw.Connection) -> None:
    """Treat the content of the database as data: its schema calls no functions, and no trigger or view runs."""
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    db.execute("PRAGMA cell_size_check = ON")  # detects some damage before it is followed
