"""The replica of a log: prepared transactions, applied records and isolated reads."""

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw
import pytest

from qo.buckets.thread_pool import ThreadPool
from qo.engines.replicated_log.frame import FrameFlags
from qo.engines.replicated_log.keys import NO_ID, FrameKind
from qo.engines.replicated_log.record_store import START, LogPosition, LogRecord
from qo.engines.replicated_log.replica import Replica, UnappliableRecord
from qo.engines.table_engine import TableEngine
from qo.ids import new_token
from qo.model import ClaimRequest, complete
from qo.sqlite_tables.header import VERSION
from qo.sqlite_tables.patchsets import merge_patchsets
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.rows import BadRow
from qo.sqlite_tables.table import SqliteTable
from qo.testing.clock import ManualClock
from qo.testing.histories import random_history
from qo.testing.samples import claim_request, new, task_id
from tests.engines.log_replicas import add, found, open_replica, record_of, replica, rows, temp, write
from tests.sqlite_tables.replicas import TableCall

__all__ = ["open_replica", "replica", "temp"]  # fixtures

Answer = TypeVar("Answer")


class Log(TableEngine):
    """Several replicas that write in random turns. The others apply the record, or later several merged ones."""

    def __init__(self, clock: ManualClock, seed: int, replicas: list[Replica]) -> None:
        super().__init__(clock)
        self._dice = random.Random(seed)
        self._replicas, self._records = replicas, list[LogRecord]()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def wait(self, request: ClaimRequest, timeout: float) -> None: ...

    def catch_up(self, replica: Replica) -> None:
        missed = self._records[replica.position.seq :]
        if len(missed) > 2 and self._dice.random() < 1 / 2:
            first, last = missed[0].header, missed[-1].header
            flags = FrameFlags.NONE
            for record in missed:
                flags |= record.header.flags
            header = first._replace(kind=FrameKind.MERGED, last=last.last, last_id=last.id, id=new_token(), flags=flags)
            missed = [LogRecord(header, merge_patchsets(record.patchset for record in missed))]
        for record in missed:
            replica.apply(record)

    async def _write(
        self, work: Callable[[SqliteTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        del abandoned  # nothing cancels a call
        replica = self._dice.choice(self._replicas)
        self.catch_up(replica)
        if self._dice.random() < 1 / 4:  # lost a race, and runs its calls again
            replica.prepare([TableCall(work)])
            replica.roll_back()
        answer, record = write(replica, work)
        if record.patchset:
            self._records.append(record)
        return answer

    async def _read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        replica = self._dice.choice(self._replicas)
        self.catch_up(replica)
        return replica.read(work)


@pytest.mark.parametrize("seed", range(3))
async def test_replicas_follow_a_random_history(seed: int, open_replica: Callable[..., Replica], temp: Path) -> None:
    clock = ManualClock()
    replicas = [open_replica() for _ in range(3)]
    log = Log(clock, seed, replicas)
    await random_history(log, clock, seed, steps=60)
    contents = []
    for each in replicas:
        log.catch_up(each)
        contents.append(rows(each, temp))
    assert contents[0] == contents[1] == contents[2]


def test_reads_see_a_transaction_only_after_its_commit(replica: Replica) -> None:
    call = TableCall(lambda table: table.add([new(0)], 1.0))
    record = record_of(replica, replica.prepare([call]))
    assert found(replica) == set() and not replica.has_ready(claim_request(), 2.0)
    replica.commit(LogPosition(1, record.header.id))
    assert found(replica) == {task_id(0)} and replica.has_ready(claim_request(), 2.0)
    assert replica.position == (1, record.header.id)


def test_a_transaction_that_is_rolled_back_leaves_nothing(replica: Replica) -> None:
    assert replica.prepare([TableCall(lambda table: table.add([new(0, type="other")], 1.0))])
    replica.roll_back()
    replica.roll_back()  # an engine need not know whether one is open
    assert found(replica) == set() and replica.position == START
    add(replica, 1)
    assert found(replica) == {task_id(1)}


def test_nothing_is_open_after_calls_that_change_nothing(
    replica: Replica, open_replica: Callable[..., Replica]
) -> None:
    record = add(replica, 0)
    call = TableCall(lambda table: table.claim(claim_request(types=("none",)), 2.0))
    assert replica.prepare([call]) == b"" and call.answer == []
    with pytest.raises(RuntimeError):
        replica.commit(LogPosition(2, NO_ID))
    follower = open_replica()
    follower.apply(record)
    replica.apply(add(follower, 1))
    assert found(replica) == {task_id(0), task_id(1)}


def test_no_record_is_applied_while_a_transaction_is_prepared(
    replica: Replica, open_replica: Callable[..., Replica]
) -> None:
    other = add(open_replica(), 1)
    assert replica.prepare([TableCall(lambda table: table.add([new(0)], 1.0))])
    for refused in (lambda: replica.apply(other), replica.pin):
        with pytest.raises(RuntimeError):
            refused()
    replica.roll_back()
    replica.apply(other)
    assert found(replica) == {task_id(1)}


def test_an_unsettled_prepared_transaction_is_discarded_by_the_next(replica: Replica) -> None:
    """Its caller may have been cancelled while a thread prepared it."""
    replica.prepare([TableCall(lambda table: table.add([new(0)], 1.0))])
    add(replica, 1)
    assert found(replica) == {task_id(1)}


async def test_a_cancelled_call_in_a_thread_leaves_a_usable_replica(replica: Replica) -> None:
    run = ThreadPool(1).run
    loop, began, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def work(table: SqliteTable) -> object:
        loop.call_soon_threadsafe(began.set)
        assert may_end.wait(30)
        return table.add([new(0)], 1.0)

    preparing = asyncio.create_task(run(replica.prepare, [TableCall(work)]))
    await began.wait()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    may_end.set()
    await run(replica.roll_back)  # runs after the call, in the same thread
    await run(add, replica, 1)
    assert found(replica) == {task_id(1)} and replica.position.seq == 1


def test_a_call_that_fails_alone_does_not_fail_the_others(replica: Replica) -> None:
    def fails(table: SqliteTable) -> None:
        table.add([new("failed")], 1.0)
        raise ValueError

    calls = [TableCall(lambda table: table.add([new(0)], 1.0)), TableCall(fails)]
    record = record_of(replica, replica.prepare(calls))
    replica.commit(LogPosition(1, record.header.id))
    assert calls[0].error is None and isinstance(calls[1].error, ValueError)
    assert found(replica) == {task_id(0)}


# --- records that do not fit


class Misfit(NamedTuple):
    fields: dict[str, Any]
    problem: str


@pytest.mark.parametrize(
    "misfit",
    [
        Misfit({"first": 3, "last": 3}, "does not follow record 1"),
        Misfit({"first": 1, "last": 1}, "does not follow record 1"),
        Misfit({"previous": new_token()}, "follows another record 1"),
        Misfit({"schema": VERSION + 1}, f"has tables of version {VERSION + 1}, not {VERSION}"),
        Misfit({"schema": VERSION - 1}, f"has tables of version {VERSION - 1}, not {VERSION}"),
    ],
)
def test_a_record_that_does_not_follow_is_refused(
    misfit: Misfit, replica: Replica, open_replica: Callable[..., Replica]
) -> None:
    follower = open_replica()
    follower.apply(add(replica, 0))
    record = add(replica, 1)
    position = follower.position
    with pytest.raises(UnappliableRecord, match=misfit.problem):
        follower.apply(LogRecord(record.header._replace(**misfit.fields), record.patchset))
    assert follower.position == position and found(follower) == {task_id(0)}
    follower.apply(record)
    assert found(follower) == {task_id(0), task_id(1)}


def test_a_patchset_of_a_wider_schema_is_refused_not_skipped(replica: Replica) -> None:
    """SQLite would skip a table that has fewer columns than the patchset, without an error."""
    wide = apsw.Connection(":memory:")
    wide.execute("CREATE TABLE notes (name TEXT PRIMARY KEY, data, version, later) WITHOUT ROWID")
    session = apsw.Session(wide, "main")
    session.attach("notes")
    wide.execute("INSERT INTO notes VALUES ('n', x'', 'v', 1)")
    with pytest.raises(UnappliableRecord, match=f"version {VERSION + 1}"):
        replica.apply(record_of(replica, session.patchset(), schema=VERSION + 1))
    assert replica.position == START


def test_rows_that_do_not_fit_are_refused_with_the_number_of_the_record(
    replica: Replica, open_replica: Callable[..., Replica]
) -> None:
    add(replica, 0)
    (task,), record = write(replica, lambda table: table.claim(claim_request(), 2.0))
    other = open_replica()
    with pytest.raises(UnappliableRecord, match=r"log/x/00: record 1: .*the row does not exist"):
        other.apply(record_of(other, record.patchset))
    assert task.id == task_id(0) and other.position == START


def test_a_lost_race_leaves_no_lane_behind(replica: Replica, open_replica: Callable[..., Replica]) -> None:
    """Another process may give the number of a new lane to a lane of its own."""
    other = open_replica()
    other.apply(write(replica, lambda table: table.add([new(0, type="first")], 1.0))[1])
    call = TableCall(lambda table: (table.add([new(1, type="mine")], 2.0), table.claim(claim_request(limit=5), 3.0)))
    assert replica.prepare([call]) and len(call.answer[1]) == 2
    replica.roll_back()
    replica.apply(write(other, lambda table: table.add([new(2, type="theirs"), new(3, type="third")], 2.0))[1])
    tasks, _ = write(replica, lambda table: table.claim(claim_request(types=("mine", "theirs")), 4.0))
    assert [(task.id, task.type) for task in tasks] == [(task_id(2), "theirs")]
    tasks, _ = write(replica, lambda table: table.claim(claim_request(), 5.0))
    assert [(task.id, task.type) for task in tasks] == [(task_id(0), "first"), (task_id(3), "third")]


def test_a_lost_race_after_tasks_were_set_aside_or_deleted_leaves_nothing(replica: Replica) -> None:
    write(replica, lambda table: table.add([new(n, type=f"t{n}") for n in range(3)], 1.0))
    (task,), _ = write(replica, lambda table: table.claim(claim_request(types=("t0",)), 2.0))
    write(replica, lambda table: table.apply([complete(task)], 3.0))
    works: list[Callable[[SqliteTable], object]] = [
        lambda table: table.delete([task_id(0)]),
        lambda table: table.set_aside([BadRow(2, task_id(1), "bad")]),
    ]
    for work in works:
        calls = [TableCall(work), TableCall(lambda table: table.claim(claim_request(), 4.0))]
        assert replica.prepare(calls) and calls[1].answer
        replica.roll_back()
    tasks, _ = write(replica, lambda table: table.claim(claim_request(), 5.0))
    assert [task.id for task in tasks] == [task_id(1), task_id(2)]
