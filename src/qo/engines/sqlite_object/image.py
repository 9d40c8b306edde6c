"""A database as the bytes of an object, and as tables in memory again."""

from collections.abc import Sequence
from typing import NamedTuple

import apsw

from qo.clock import Clock
from qo.engines.sqlite_object.calls import Claims, PendingCall, gathered
from qo.engines.sqlite_object.image_checksum import check_image, seal_image
from qo.errors import StorageError
from qo.ids import new_token as new_write_id
from qo.model import ClaimRequest
from qo.sqlite_tables.header import HEADER, parse_header
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.ready_lanes import ReadyLanes
from qo.sqlite_tables.schema import migrate
from qo.sqlite_tables.statements import SQL
from qo.sqlite_tables.writer import Writer

REMEMBERED = 64  # write ids: so many others may write before we read back
_WRITES = "CREATE TABLE IF NOT EXISTS writes (n INTEGER PRIMARY KEY, id TEXT NOT NULL)"  # the last ones of this object
_JOURNAL = slice(18, 20)  # bytes of the header that say how it is written
_NO_LOG = b"\x01\x01"  # with a write-ahead log it could not be opened in memory
_WASTE = 4  # one page in so many may be empty


class Write(NamedTuple):
    """One version of the object, as it names itself."""

    n: int
    id: str


class Image:
    """The tables, in memory, and nobody else's. What is done here reaches the bucket as `encode` gives it."""

    def __init__(self, key: str, data: bytes, clock: Clock, *, is_ours: bool = False) -> None:
        self._clock = clock
        self._db = _load(key, data, is_ours=is_ours)
        self._ready = ReadyLanes(self._db, SqliteLanes(self._db))
        self._writer = Writer(key, self._db, lambda: None)
        self.reading = SqliteReader(self._db)

    def close(self) -> None:
        self._db.close()

    def do(self, calls: Sequence[PendingCall]) -> bool:
        """All of them in one transaction, each answered or refused in itself. Whether anything was written."""
        before = self._db.total_changes()
        jobs = gathered(calls, self._clock())
        self._writer.serve(jobs)
        for job in jobs:
            if isinstance(job, Claims):
                job.deal()
        return self._db.total_changes() != before

    def encode(self) -> tuple[bytes, Write]:
        """As bytes to be written, and the name of that write: no two writes of an object are equal."""
        write = Write(self.number() + 1, new_write_id())
        with self._db:
            self._db.execute("INSERT INTO writes (n, id) VALUES (?, ?)", write)
            self._db.execute("DELETE FROM writes WHERE n <= ?", (write.n - REMEMBERED,))
        if self._db.execute("PRAGMA freelist_count").get * _WASTE > self._db.execute("PRAGMA page_count").get:
            self._db.execute("PRAGMA incremental_vacuum").fetchall()  # what is empty would be sent with every write
        return seal_image(self._db.serialize("main")), write

    def number(self) -> int:
        """How often the object was written."""
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


def names(stored: bytes, write: Write) -> bool | None:
    """Whether what is stored comes from that write; None if it cannot be told."""
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
    return False if last < write.n + REMEMBERED else None


def _load(key: str, data: bytes, *, is_ours: bool) -> apsw.Connection:
    is_blank = not is_ours and _is_blank(key, data)
    if not is_ours and not is_blank:
        check_image(key, data)
    try:
        db = _deserialize(b"" if is_blank else data)
        try:
            if not is_ours and not is_blank:
                _check(db)
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heard only by a database without tables
            migrate(db, key)
            db.execute(_WRITES)
        except BaseException:
            db.close()
            raise
    except apsw.Error as error:
        raise StorageError(f"{key} is damaged; look at it and put an older version in its place: {error}") from error
    return db


def _check(db: apsw.Connection) -> None:
    found = db.execute("PRAGMA quick_check(1)").get
    if found != "ok":
        raise apsw.CorruptError(found)


def _is_blank(key: str, data: bytes) -> bool:
    """Refuse what is not ours."""
    try:
        header = parse_header(key, data[:HEADER])
    except StorageError as error:
        raise StorageError(f"{key} does not hold a queue; look at it and move it away") from error
    if header is not None and not header.ours:
        raise StorageError(f"{key} is a database of another application; move it away, or use another prefix")
    return header is None


def _deserialize(data: bytes) -> apsw.Connection:
    db = apsw.Connection(":memory:", statementcachesize=200)
    if not data:
        return db
    if data[_JOURNAL] != _NO_LOG:  # a file that someone uploaded
        data = data[: _JOURNAL.start] + _NO_LOG + data[_JOURNAL.stop :]
    try:
        db.deserialize("main", data)
    except BaseException:
        db.close()
        raise
    return db
