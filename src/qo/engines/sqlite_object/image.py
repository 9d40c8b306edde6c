"""A database as the bytes of an object, and as tables in memory.

The bytes carry a checksum: CRC-32 of all bytes, in a part of SQLite's header that SQLite does not use, together with
the file change counter. SQLite increments the counter with every change, so if another tool changes the database, the
checksum no longer applies, instead of being wrong.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import apsw

from qo.clock import Clock
from qo.engines.combined_claims import CombinedClaims, combined
from qo.engines.commit_loop import PendingCall
from qo.errors import StorageError
from qo.ids import new_token as new_write_id
from qo.model import ClaimRequest
from qo.sqlite_tables.header import FILE_VERSION, HEADER, ignore_code, parse_header
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.migrations import migrate
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.statements import SQL
from qo.sqlite_tables.transaction import ReadyLanes
from qo.sqlite_tables.writer import Writer

_KEPT_WRITE_IDS = 64  # other processes may write this often before a lost response is resolved
_CREATE_WRITES = "CREATE TABLE IF NOT EXISTS writes (n INTEGER PRIMARY KEY, id TEXT NOT NULL)"  # the last ones
_JOURNAL = slice(18, 20)  # the bytes of the header with the journal mode
_NO_LOG = b"\x01\x01"  # a database with a write-ahead log cannot be opened in memory
_VACUUM_SHARE = 4  # vacuum if more than one page in four is empty
_SEAL_BYTES = slice(72, 92)  # "reserved for expansion"
_CHANGE_COUNTER = slice(24, 28)
_SEAL = Struct(">4s4sI8x")
_SEAL_MARK = b"qo\x00\x01"
_NO_SEAL = bytes(_SEAL.size)


class Write(NamedTuple):
    """The number and the id of one write of the object."""

    n: int
    id: str


class Image:
    """The tables in memory, used by one engine. Changes reach the bucket when the result of `encode` is uploaded."""

    def __init__(self, key: str, data: bytes, clock: Clock, *, is_ours: bool = False) -> None:
        self._clock = clock
        self._db = _load(key, data, is_ours=is_ours)
        self._ready = ReadyLanes(self._db, SqliteLanes(self._db))
        self._writer = Writer(key, self._db, lambda: None, known_version=FILE_VERSION)
        self.reader = SqliteReader(self._db)

    def close(self) -> None:
        self._db.close()

    def do(self, calls: Sequence[PendingCall]) -> bool:
        """Run the calls in one transaction; each gets an answer or an error. Returns whether anything was written."""
        before = self._db.total_changes()
        served = combined(calls, self._clock())
        self._writer.serve(served)
        for call in served:
            if isinstance(call, CombinedClaims):
                call.distribute()
        return self._db.total_changes() != before

    def encode(self) -> tuple[bytes, Write]:
        """The bytes to upload, and the id of this write, which makes them unique."""
        write = Write(self.number() + 1, new_write_id())
        with self._db:
            self._db.execute("INSERT INTO writes (n, id) VALUES (?, ?)", write)
            self._db.execute("DELETE FROM writes WHERE n <= ?", (write.n - _KEPT_WRITE_IDS,))
        if self._db.execute("PRAGMA freelist_count").get * _VACUUM_SHARE > self._db.execute("PRAGMA page_count").get:
            self._db.execute("PRAGMA incremental_vacuum").fetchall()  # every write sends the empty pages
        return _sealed(self._db.serialize("main")), write

    def number(self) -> int:
        """The number of writes of the object."""
        number: int = self._db.execute("SELECT max(n) FROM writes").get or 0
        return number

    def has_ready(self, request: ClaimRequest) -> bool:
        coming = self.next_at()
        now = self._clock()
        return (coming is not None and coming <= now) or bool(self._ready.first(request, now))

    def next_at(self) -> float | None:
        """When the next task that is not ready yet becomes due."""
        at: float | None = self._db.execute(SQL["coming"]).get
        return at


def is_written_by(stored: bytes, write: Write) -> bool | None:
    """Whether the stored image includes this write. None: unknown."""
    try:
        db = _deserialize(stored)
        try:
            written = [Write(*row) for row in db.execute("SELECT n, id FROM writes")]
        finally:
            db.close()
    except apsw.Error:
        return None
    if write in written:
        return True
    last = max((each.n for each in written), default=0)
    return False if last < write.n + _KEPT_WRITE_IDS else None


def _load(key: str, data: bytes, *, is_ours: bool) -> apsw.Connection:
    is_blank = not is_ours and _is_blank(key, data)
    if not is_ours and not is_blank:
        _check_seal(key, data)
    try:
        db = _deserialize(b"" if is_blank else data)
        try:
            if not is_ours and not is_blank:
                _check(db)
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect only before tables exist
            migrate(db, key)
            db.execute(_CREATE_WRITES)
        except BaseException:
            db.close()
            raise
    except apsw.Error as error:
        raise StorageError(f"{key} is damaged; examine it and restore an older version: {error}") from error
    return db


def _check(db: apsw.Connection) -> None:
    found = db.execute("PRAGMA quick_check(1)").get
    if found != "ok":
        raise apsw.CorruptError(found)


def _is_blank(key: str, data: bytes) -> bool:
    """Whether the database has no content. Raises StorageError if it belongs to another application."""
    try:
        header = parse_header(key, data[:HEADER])
    except StorageError as error:
        raise StorageError(f"{key} does not hold a queue; examine it and move it away") from error
    if header is not None and not header.is_ours:
        raise StorageError(f"{key} is a database of another application; move it away, or use another prefix")
    return header is None


def _deserialize(data: bytes) -> apsw.Connection:
    db = apsw.Connection(":memory:", statementcachesize=200)
    ignore_code(db)
    if not data:
        return db
    if data[_JOURNAL] != _NO_LOG:  # a database file that a user uploaded
        data = data[: _JOURNAL.start] + _NO_LOG + data[_JOURNAL.stop :]
    try:
        db.deserialize("main", data)
    except BaseException:
        db.close()
        raise
    return db


def _sealed(data: bytes) -> bytes:
    """The image with its checksum."""
    if len(data) < HEADER:
        return data
    seal = _SEAL.pack(_SEAL_MARK, data[_CHANGE_COUNTER], _checksum(data))
    return data[: _SEAL_BYTES.start] + seal + data[_SEAL_BYTES.stop :]


def _check_seal(key: str, data: bytes) -> None:
    """Raises StorageError if the checksum does not match. An image without a checksum is accepted."""
    if len(data) < HEADER or data[_SEAL_BYTES] == _NO_SEAL:
        return
    mark, counter, checksum = _SEAL.unpack(data[_SEAL_BYTES])
    if mark == _SEAL_MARK and counter == data[_CHANGE_COUNTER] and checksum != _checksum(data):
        raise StorageError(f"{key} is damaged: its checksum does not match its bytes; restore an older version")


def _checksum(data: bytes) -> int:
    view = memoryview(data)
    return crc32(view[_SEAL_BYTES.stop :], crc32(_NO_SEAL, crc32(view[: _SEAL_BYTES.start])))
