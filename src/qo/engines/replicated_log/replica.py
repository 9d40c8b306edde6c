"""The replica of a shard: its tables in a private SQLite file, at one position of the log.

One connection writes, and one reads. The writing transaction stays open until its record is stored, and reads see only
what was committed before. The methods block and are called through a `Runner`: those that write one at a time, and
those that read one at a time.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from qo.engines.replicated_log.claim_shares import ClaimCandidate, read_candidates
from qo.engines.replicated_log.frame import FrameFlags
from qo.engines.replicated_log.keys import FrameKind
from qo.engines.replicated_log.record_store import START, LogPosition, LogRecord
from qo.engines.replicated_log.replica_file import PinnedReplica, ReplicaFile, database_size, mapped_errors
from qo.engines.replicated_log.replica_tables import check_tables, create_tables, first_schema, schema_of
from qo.engines.replicated_log.schema_steps import BadStep, SchemaStep, make_step, next_step, replicated_tables
from qo.errors import StorageError
from qo.model import ClaimRequest
from qo.sqlite_tables.claims import require_heads, takes_from
from qo.sqlite_tables.header import VERSION, ignore_code
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.migrations import add_missing_indexes
from qo.sqlite_tables.patchsets import ChangeRecorder, PatchsetRefused
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.rows import encode_list
from qo.sqlite_tables.segment_drafts import draft_segment
from qo.sqlite_tables.segments import SegmentDraft
from qo.sqlite_tables.statements import SQL
from qo.sqlite_tables.transaction import ReadyLanes
from qo.sqlite_tables.writer import Writer, WriterCall

Answer = TypeVar("Answer")

_WRITER_CACHE, _READER_CACHE = 32_768, 8_192  # KiB of pages
_JOURNAL_LIMIT = 16 * 1024 * 1024  # bytes of write-ahead log kept after a long copy or a large transaction
_STATEMENTS = 200  # compiled statements kept by a connection

_numbers = msgspec.json.Decoder(list[int])


class UnappliableRecord(StorageError):
    """A record does not follow the replica's position, or its rows do not fit. The replica is unchanged."""


class Replica:
    """Owns its file and removes it when it is closed. A process that forked must not use it in the child."""

    def __init__(
        self,
        place: str,
        file: ReplicaFile | None = None,
        position: LogPosition = START,
        *,
        schema: int | None = None,
    ) -> None:
        """`file` contains the image of the tables at `position`. Without it the replica is empty, with this schema.

        Raises StorageError if the file does not contain the tables of a log, and NewerFormat if this build must not
        use them.
        """
        self._place, self._process = place, os.getpid()
        self._file = file or ReplicaFile.create()
        self.position = position
        self.flags = FrameFlags.NONE  # of the record of the prepared transaction
        self._is_prepared = False
        self._connections: list[apsw.Connection] = []
        try:
            with self._mapped_errors():
                self._open(None if file is not None else schema or first_schema().format)
        except BaseException:
            self.close()
            raise

    def _open(self, new_schema: int | None) -> None:
        db = self._connect(_WRITER_CACHE)
        if new_schema is not None:
            create_tables(db, self._place, new_schema)
        else:
            check_tables(db, self._place)
        self._db = db
        self._read_schema()
        if new_schema is None:
            add_missing_indexes(db, self.schema)
        self._recorder = ChangeRecorder(db)
        self._writer = Writer(self._place, db, lambda: None)
        self._reading = self._connect(_READER_CACHE)
        self._reading.execute("PRAGMA query_only = ON")
        self._forget_reads()

    def _read_schema(self) -> None:
        self.schema, self.schema_since = schema_of(self._db, self._place)
        self._tables = replicated_tables(self._db)

    def _forget_reads(self) -> None:
        """Begin with empty caches."""
        self._reader = SqliteReader(self._reading)
        self._lanes = SqliteLanes(self._reading)
        self._ready = ReadyLanes(self._reading, self._lanes)

    def _connect(self, cache_size: int) -> apsw.Connection:
        db = apsw.Connection(str(self._file.path), statementcachesize=_STATEMENTS)
        self._connections.append(db)
        ignore_code(db)
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA synchronous = OFF")  # a file that is lost with the process needs no flushes
        db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_LIMIT}")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute(f"PRAGMA cache_size = {-cache_size}")
        return db

    def close(self) -> None:
        """Close the connections and remove the file."""
        if self._process == os.getpid():  # the parent of a forked child still uses them
            while self._connections:
                self._connections.pop().close()
            self._file.remove()

    # --- writing

    def prepare(self, calls: Sequence[WriterCall]) -> bytes:
        """Run the calls in one transaction, and return its patchset. `commit` or `roll_back` must follow.

        Each call gets an answer or an error. If nothing has changed, or the store refused all calls, the result is
        empty and no transaction is open. A prepared transaction that was not settled is rolled back first.
        """
        with self._mapped_errors():
            self.roll_back()
            self._recorder.start()
            try:
                if not self._writer.prepare(calls):
                    return b""
                patchset = self._recorder.take()
                if not patchset:
                    self._writer.commit()  # keeps the caches, unlike a rollback
                    return b""
            except BaseException:
                self._writer.forget()
                raise
            finally:
                self._recorder.close()
            self._is_prepared = True
            self.flags = FrameFlags.LANES_REMOVED if self._writer.has_removed_lanes else FrameFlags.NONE
            return patchset

    def commit(self, position: LogPosition) -> None:
        """Commit the prepared transaction, whose record is stored at `position`.

        Raises StorageError after it was rolled back: the position is unchanged, and the record can be applied.
        """
        with self._mapped_errors():
            if not self._is_prepared:
                raise RuntimeError("no transaction is prepared")
            self._is_prepared = False
            self._writer.commit()
            self.position = position

    def roll_back(self) -> None:
        """Discard the prepared transaction, if there is one."""
        with self._mapped_errors():
            if self._is_prepared:
                self._is_prepared = False
                self._writer.roll_back()

    def apply(self, record: LogRecord) -> None:
        """Apply the next record, or the next merged ones. Raises UnappliableRecord; the replica is unchanged then."""
        header = record.header
        with self._mapped_errors():
            if self._is_prepared:
                raise RuntimeError("a transaction is prepared")
            name = f"{self._place}: record {header.first}"
            if header.first != self.position.seq + 1:
                raise UnappliableRecord(f"{name} does not follow record {self.position.seq}")
            if header.previous != self.position.id:
                raise UnappliableRecord(f"{name} follows another record {self.position.seq} than the one read here")
            try:
                if FrameFlags.SCHEMA_STEP in header.flags:
                    self._make_step(record.patchset)
                elif header.schema != self.schema:  # SQLite would skip what it does not know
                    raise UnappliableRecord(f"{name} has tables of version {header.schema}, not {self.schema}")
                else:
                    removes_lanes = FrameFlags.LANES_REMOVED in header.flags
                    self._writer.apply(record.patchset, removes_lanes=removes_lanes, tables=self._tables)
            except (PatchsetRefused, BadStep) as error:
                raise UnappliableRecord(f"{name}: {error}") from error
            last_id = header.id if header.kind is FrameKind.RECORD else header.last_id
            self.position = LogPosition(header.last, last_id)

    def _make_step(self, body: bytes) -> None:
        make_step(self._db, self._place, body)
        self._read_schema()
        self._writer.forget()
        self._forget_reads()

    def upgrade(self) -> SchemaStep | None:
        """The step that the tables need before this build can use them. Apply its record before any other use."""
        return next_step(self.schema)

    # --- reading what was committed

    def read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        with self._mapped_errors():
            return work(self._reader)

    def has_ready(self, request: ClaimRequest, now: float) -> bool:
        coming = self.next_at()
        if coming is not None and coming <= now:
            return True
        with self._mapped_errors():
            with self._reading:  # one snapshot for lanes and their first tasks
                lanes = self._ready.first(request, now)
                has_cold = self._has_cold(request)
            return bool(lanes) or has_cold

    def _has_cold(self, request: ClaimRequest) -> bool:
        """Whether segments contain ready tasks for this request."""
        cold = _numbers.decode(self._reading.execute(SQL["cold_lanes"], (encode_list([*self.unreadable]),)).get)
        if not cold:
            return False
        self._lanes.refresh()
        takes = takes_from(request)
        return any(takes(self._lanes[lane]) for lane in cold if lane in self._lanes)

    def candidates(self, request: ClaimRequest, now: float) -> list[ClaimCandidate]:
        """The tasks that a claim may lease. Raises DamageFound, or SegmentNeeded."""
        with self._mapped_errors():
            with self._reading:  # one snapshot
                require_heads(self._reading, self._lanes, request.limit, takes_from(request), self.unreadable)
                found = read_candidates(self._reading, self._lanes, self._ready, request, now)
            return found  # noqa: RET504 - mypy takes the context for one that swallows errors

    def next_at(self) -> float | None:
        """When the next task that is not ready yet becomes due."""
        with self._mapped_errors():
            at: float | None = self._reading.execute(SQL["coming"]).get
            return at

    # --- segments

    @property
    def unreadable(self) -> frozenset[str]:
        """The objects of segments that claims pass over, because they cannot be read."""
        return self._writer.unreadable

    @unreadable.setter
    def unreadable(self, objects: frozenset[str]) -> None:
        self._writer.unreadable = objects

    def choose(self, work: Callable[[apsw.Connection], Answer]) -> Answer:
        """Run work that chooses tasks for segments."""
        with self._mapped_errors():
            return work(self._reading)

    def draft_segment(self, choose: Callable[[apsw.Connection], Sequence[int]]) -> SegmentDraft | None:
        """As `segments.draft_segment`. None if a newer build has added columns, whose meaning is unknown."""
        with self._mapped_errors():
            return draft_segment(self._reading, choose) if self.knows_all_columns else None

    @property
    def knows_all_columns(self) -> bool:
        return self.schema <= VERSION

    @property
    def size(self) -> int:
        """The bytes of the database."""
        with self._mapped_errors():
            return database_size(self._reading)

    # --- copies

    def pin(self) -> "PinnedReplica":
        """The tables at the current position, for a copy. Later commits do not change what it contains.

        Call it like the methods that write. The result may be used at the same time as the replica, in any thread.
        """
        with self._mapped_errors():
            if self._is_prepared:
                raise RuntimeError("a transaction is prepared")
            return PinnedReplica(self._place, self._file.path, self.position, self.schema, self.schema_since)

    def copy_to(self, path: Path) -> LogPosition:
        """Copy the database to a new file, and return the position of the copy."""
        pinned = self.pin()
        try:
            pinned.copy_to(path)
        finally:
            pinned.close()
        return pinned.position

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        if os.getpid() != self._process:
            raise StorageError(f"{self._place} was opened before the process forked; open another one in the child")
        with mapped_errors(self._place):
            yield
