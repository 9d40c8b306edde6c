"""A bucket with submissions, and the tables into which they are added, for tests of the inbox."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import apsw

from qo.bucket import ANY
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log.keys import submission_key, submissions_prefix
from qo.engines.replicated_log.submission_batch import SubmissionBatch
from qo.engines.replicated_log.submission_inbox import SubmissionInbox
from qo.engines.replicated_log.submissions import SubmissionStream, encode_submission
from qo.ids import new_token
from qo.sqlite_tables.migrations import migrate
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.table import SqliteTable
from qo.sqlite_tables.writer import Writer
from qo.testing import ManualClock
from qo.testing.samples import new

T = TypeVar("T")
LOG, SHARD = "0123456789ab", 0


@dataclass
class Call:
    """One call of a transaction."""

    work: Callable[[SqliteTable], Any]
    answer: Any = None
    error: BaseException | None = None


class Tables:
    """The tables that all replicas agree on."""

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        migrate(self.db, "a test")
        self.db.execute("CREATE TABLE submissions (producer TEXT PRIMARY KEY, next INTEGER, at REAL) WITHOUT ROWID")
        self._writer = Writer("a test", self.db, lambda: None)

    def commit(self, batch: SubmissionBatch, now: float = 0.0) -> None:
        self.run(lambda table: batch.ingest(table, now))

    def run(self, work: Callable[[SqliteTable], T]) -> T:
        """Do some work in a transaction."""
        call = Call(work)
        self._writer.serve([call])
        assert call.error is None
        answer: T = call.answer
        return answer

    def numbers(self) -> list[int]:
        """The names of the tasks, in the order in which they were added."""
        return [int(found[:8], 16) for (found,) in self.db.execute("SELECT id FROM tasks ORDER BY n")]

    def rows(self) -> list[tuple[str, int]]:
        return [
            (producer, following) for producer, following in self.db.execute("SELECT producer, next FROM submissions")
        ]

    def note_names(self) -> list[str]:
        return [note.name for note in SqliteReader(self.db).notes("")]


class Place:
    """A bucket, tables, and an inbox that reads the one into the others."""

    def __init__(self, bucket: MemoryBucket | None = None) -> None:
        self.clock = ManualClock()
        self.bucket = bucket or MemoryBucket(self.clock)
        self.tables = Tables()
        self.inbox = SubmissionInbox(self.bucket, LOG, SHARD, elapsed=self.clock, wall=self.clock)
        self.stream = self.new_stream()

    def new_stream(self) -> SubmissionStream:
        return SubmissionStream(self.bucket, LOG, SHARD, elapsed=self.clock, wall=self.clock)

    async def waiting(self) -> list[str]:
        return [key async for key in self.bucket.keys(submissions_prefix(LOG, SHARD))]

    async def put(self, producer: str, n: int, *names: int, at: float | None = None) -> str:
        """Store an object, whatever the stream would do."""
        tasks = [new(name) for name in names]
        data = encode_submission(
            producer, SHARD, n, tasks, at=self.bucket.now() if at is None else at, writer=new_token()
        )
        key = submission_key(LOG, SHARD, producer, n)
        await self.bucket.put(key, data, expected=ANY)
        return key

    async def consume(self, inbox: SubmissionInbox | None = None, *, times: int = 1) -> None:
        inbox = inbox or self.inbox
        for _ in range(times):
            await inbox.scan()
            await inbox.read()
            if batch := inbox.batch():
                self.tables.commit(batch, self.bucket.now())
                await inbox.settle(batch)


def producers(*digits: str) -> list[str]:
    return [digit * 32 for digit in digits]
