"""Tables that record patchsets and apply those of others, without a log."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import apsw

from qo.engines.table_engine import TableEngine
from qo.model import ClaimRequest
from qo.sqlite_tables.migrations import migrate
from qo.sqlite_tables.patchsets import RECORDED, ChangeRecorder
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.table import SqliteTable
from qo.sqlite_tables.writer import Writer
from qo.testing.clock import ManualClock

Answer = TypeVar("Answer")
Rows = dict[str, list[tuple[Any, ...]]]

SUBMISSIONS = (
    "CREATE TABLE submissions (producer TEXT PRIMARY KEY, next INTEGER NOT NULL, at REAL NOT NULL) WITHOUT ROWID"
)


class Patch(NamedTuple):
    patchset: bytes
    removes_lanes: bool


class TableCall:
    def __init__(self, work: Callable[[SqliteTable], Any]) -> None:
        self.work = work
        self.answer: Any = None
        self.error: BaseException | None = None


class TableReplica:
    """One database in memory."""

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        migrate(self.db, "a replica")
        self.db.execute(SUBMISSIONS)
        self.writer, self.reader = Writer("a replica", self.db, lambda: None), SqliteReader(self.db)
        self._recorder = ChangeRecorder(self.db)

    def write(self, work: Callable[[SqliteTable], Answer]) -> tuple[Answer, Patch]:
        """Run one call in a transaction. Returns its answer, and what others must apply."""
        call = TableCall(work)
        self._recorder.start()
        assert self.writer.prepare([call])
        patch = Patch(self._recorder.take(), self.writer.has_removed_lanes)
        self.writer.commit()
        if call.error is not None:
            raise call.error
        return call.answer, patch

    def apply(self, patch: Patch) -> None:
        self.writer.apply(patch.patchset, removes_lanes=patch.removes_lanes)

    def execute(self, sql: str) -> None:
        self.db.execute(sql)

    def rows(self) -> Rows:
        return {table: sorted(self.db.execute(f"SELECT * FROM {table}"), key=repr) for table in RECORDED}


class Replicas(TableEngine):
    """Writes on one of two replicas in random turns, and applies each patchset to the other one."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        super().__init__(clock)
        self._dice = random.Random(seed)
        self.replicas = [TableReplica(), TableReplica()]
        self.patches: list[Patch] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def wait(self, request: ClaimRequest, timeout: float) -> None: ...

    async def _write(
        self, work: Callable[[SqliteTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        del abandoned  # nothing cancels a call
        leader, follower = self._dice.sample(self.replicas, 2)
        answer, patch = leader.write(work)
        self.patches.append(patch)
        follower.apply(patch)
        return answer

    async def _read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        return work(self._dice.choice(self.replicas).reader)
