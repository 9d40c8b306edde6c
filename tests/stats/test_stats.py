"""What was done is counted in the store, once, by whoever settles; and what is old takes little room."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from qo.client import Client
from qo.clock import system_clock
from qo.engine import Engine
from qo.engines import open_engine
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.model import ANY
from qo.monitor import Monitor
from qo.stats import Durations, Interval, StatsRow, add_up, compact_stats, read_stats
from qo.stats.archive import HOUR, PREFIX, RETENTION
from qo.stats.rows import MAX_TYPES, OTHER_TYPES, RowKey, row_of
from qo.tasks import Registry, make_handler, make_options
from qo.testing import ManualClock
from qo.worker import Worker, WorkerSettings
from tests.conditions import TIMEOUT, until


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock.advance(HOUR - clock.now % HOUR + 60)  # the second minute of an hour
    return clock


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    return MemoryEngine(clock)


@pytest.fixture
def client(engine: Engine, clock: ManualClock) -> Client:
    return Client(engine, clock=clock)


async def total(client: Client, clock: ManualClock, since: float = HOUR) -> dict[str, StatsRow]:
    await client.recorder.flush()
    rows = add_up(await read_stats(client.engine, clock.now - since, clock.now))
    return {key.type: row for key, row in rows.items()}


async def complete_one(client: Client, type: str = "t") -> None:
    await client.enqueue(type)
    (task,) = await client.dequeue(type)
    await client.ack(task)


async def test_each_outcome_is_counted_by_type(client: Client, clock: ManualClock) -> None:
    await complete_one(client, "good")
    await client.enqueue("bad", max_retries=1)
    for _ in range(2):
        (task,) = await client.dequeue("bad")
        clock.advance(2)
        await client.nack(task, "boom", delay=0)
    cancelled = await client.enqueue("bad")
    await client.cancel(cancelled.id)
    counted = await total(client, clock)
    assert counted["good"].completed == 1 and counted["good"].run.number == 1
    bad = counted["bad"]
    assert (bad.retried, bad.failed, bad.dead_lettered, bad.cancelled) == ({"error": 1}, {"error": 1}, 1, 1)
    assert bad.run.total == pytest.approx(4) and bad.wait.number == 2


async def test_the_wait_is_from_when_a_task_was_due(client: Client, clock: ManualClock) -> None:
    await client.enqueue("t", delay=100)
    clock.advance(130)
    (task,) = await client.dequeue("t")
    clock.advance(7)
    await client.ack(task)
    row = (await total(client, clock))["t"]
    assert row.wait.total == pytest.approx(30) and row.run.total == pytest.approx(7)
    assert row.total["completed"].total == pytest.approx(137)


async def test_a_task_that_was_promoted_is_counted_as_such(client: Client, clock: ManualClock) -> None:
    await client.enqueue("t", priority="low")
    clock.advance(700)
    (task,) = await client.dequeue("t")
    await client.ack(task)
    assert (await total(client, clock))["t"].promoted == {"medium": 1}


async def test_a_repeated_settlement_counts_once_and_a_released_task_not_at_all(
    client: Client, clock: ManualClock
) -> None:
    await client.enqueue("t")
    (task,) = await client.dequeue("t")
    await client.release(task)
    (task,) = await client.dequeue("t")
    for _ in range(3):
        await client.ack(task)
    row = (await total(client, clock))["t"]
    assert (row.completed, row.run.number, row.retried, row.failed) == (1, 1, {}, {})


async def test_a_lost_attempt_is_counted_by_the_monitor(client: Client, clock: ManualClock) -> None:
    await client.enqueue("t")
    await client.dequeue("t", lease=10)
    clock.advance(60)
    await Monitor(client, id="m", clock=clock).check()
    row = (await total(client, clock))["t"]
    assert row.lost == 1 and row.retried == {"lost": 1} and row.run.number == 0


async def test_a_worker_counts_what_it_runs_and_what_no_worker_can_run(tmp_path: Path) -> None:
    def good() -> None: ...

    def bad() -> None:
        raise ValueError("no")

    registry = Registry()
    for function in (good, bad):
        registry.add(make_handler(function, type=function.__name__, options=make_options(function, max_retries=0)))
    async with Client(open_engine(f"sqlite:///{tmp_path}/qo.db")) as client:
        for type in ("good", "good", "bad", "nobody_knows_it"):
            await client.enqueue(type, {}, max_retries=0)
        await Worker(client, registry, WorkerSettings(drain=True, fail_unknown_types=0.0)).run()
        await client.recorder.flush()
        now = system_clock()
        rows = {key.type: row for key, row in add_up(await read_stats(client.engine, now - 60, now)).items()}
    assert rows["good"].completed == 2 and rows["good"].run.number == 2
    assert rows["bad"].failed == {"error": 1} and rows["bad"].dead_lettered == 1
    assert rows["nobody_knows_it"].failed == {"unknown_type": 1}


# --- when it is written


async def test_closing_writes_what_was_counted_and_an_idle_process_writes_nothing(
    engine: Engine, clock: ManualClock
) -> None:
    async with Client(engine, clock=clock) as idle:
        await idle.enqueue("t")
    assert await engine.notes(PREFIX) == []
    async with Client(engine, clock=clock) as busy:
        (task,) = await busy.dequeue("t")
        await busy.ack(task)
    assert add_up(await read_stats(engine, clock.now, clock.now))[RowKey("t", "medium")].completed == 1


async def test_counts_are_written_by_themselves_soon(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qo.stats.archive._MIN_WRITE_INTERVAL", 0.01)
    client = Client(engine, clock=clock)
    await complete_one(client)
    assert await until(engine.notes, PREFIX)


async def test_a_store_that_is_away_costs_no_counts(clock: ManualClock) -> None:
    class Away(MemoryEngine):
        is_away = True

        async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
            if self.is_away and name.startswith(PREFIX):
                raise StorageError("away")
            return await super().write_note(name, data, expected=expected)

    engine = Away(clock)
    client = Client(engine, clock=clock)
    await complete_one(client)
    with pytest.raises(StorageError):
        await client.recorder.flush()
    clock.advance(HOUR)
    await complete_one(client)
    engine.is_away = False
    assert (await total(client, clock, since=2 * HOUR))["t"].completed == 2


async def test_a_store_that_is_away_at_the_end_does_not_keep_the_process(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Frozen(MemoryEngine):
        async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
            await asyncio.Event().wait()
            return await super().write_note(name, data, expected=expected)

    client = Client(Frozen(clock), clock=clock)
    await complete_one(client)
    async with asyncio.timeout(TIMEOUT):
        await client.close()
    assert "are lost" in caplog.text


async def test_a_write_that_hangs_at_the_end_is_stopped(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qo.stats.archive._MIN_WRITE_INTERVAL", 0.01)
    monkeypatch.setattr("qo.stats.archive._LAST_WRITE_TIMEOUT", 0.1)
    hangs, before = asyncio.Event(), asyncio.all_tasks()

    class Frozen(MemoryEngine):
        async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
            if not name.startswith(PREFIX):
                return await super().write_note(name, data, expected=expected)
            hangs.set()
            return await asyncio.Future()

    client = Client(Frozen(clock), clock=clock)
    await complete_one(client)
    await hangs.wait()
    await complete_one(client)  # does not start a second write
    await client.close()
    assert asyncio.all_tasks() == before


async def test_nothing_is_written_after_the_end(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qo.stats.archive._MIN_WRITE_INTERVAL", 0.01)
    monkeypatch.setattr("qo.stats.archive._MAX_WRITE_INTERVAL", 0.01)
    waits, go, writes = asyncio.Event(), asyncio.Event(), 0

    class Away(MemoryEngine):
        async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
            nonlocal writes
            if name.startswith(PREFIX):
                writes += 1
                waits.set()
                await go.wait()
                raise StorageError("away")
            return await super().write_note(name, data, expected=expected)

    client = Client(Away(clock), clock=clock)
    await complete_one(client)
    await waits.wait()
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)  # it waits for the write
    go.set()
    await closing
    before, later = writes, asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, later.set)  # after a timer of the recorder
    await later.wait()
    assert writes == before


# --- hours that are over


async def some_hours(engine: Engine, clock: ManualClock, hours: int) -> None:
    """Two processes complete a task in each of two minutes an hour."""
    queues = [Client(engine, clock=clock) for _ in range(2)]
    for _ in range(hours):
        for queue in (*queues, *queues):
            await complete_one(queue)
            clock.advance(60)
        for queue in queues:
            await queue.recorder.flush()
        clock.advance(HOUR - 240)


async def completed(engine: Engine, clock: ManualClock, since: float = 30 * 24 * HOUR) -> int:
    intervals = await read_stats(engine, clock.now - since, clock.now)
    return sum(row.completed for row in add_up(intervals).values())


async def test_old_hours_take_one_small_note_each_and_count_the_same(engine: Engine, clock: ManualClock) -> None:
    await some_hours(engine, clock, 5)
    assert len(await engine.notes(PREFIX)) == 10
    clock.advance(600)
    for _ in range(2):  # a second time there is nothing to do
        await compact_stats(engine, clock.now)
        assert [note.name.rpartition("/")[2] for note in await engine.notes(PREFIX)] == ["merged"] * 5
        assert await completed(engine, clock) == 20
    widths = [interval.seconds for interval in await read_stats(engine, clock.now - 9 * HOUR, clock.now)]
    assert widths == [HOUR] * 4 + [60] * 4  # the last hour is known by the minute
    assert await completed(engine, clock, since=HOUR + 640) == 4


async def test_a_merge_that_is_interrupted_counts_nothing_twice(clock: ManualClock) -> None:
    class Interrupted(MemoryEngine):
        broken = True

        async def drop_note(self, name: str) -> None:
            if self.broken:
                raise StorageError("away")
            await super().drop_note(name)

    engine = Interrupted(clock)
    await some_hours(engine, clock, 2)
    clock.advance(600)
    with pytest.raises(StorageError):
        await compact_stats(engine, clock.now)
    assert await completed(engine, clock) == 8
    engine.broken = False
    await compact_stats(engine, clock.now)
    assert await completed(engine, clock) == 8 and len(await engine.notes(PREFIX)) == 2


async def test_statistics_are_forgotten_after_a_week(engine: Engine, clock: ManualClock) -> None:
    await some_hours(engine, clock, 2)
    clock.advance(RETENTION + 2 * HOUR)
    await compact_stats(engine, clock.now)
    assert await engine.notes(PREFIX) == []


async def test_the_monitor_does_it(client: Client, clock: ManualClock) -> None:
    await some_hours(client.engine, clock, 2)
    clock.advance(600)
    await Monitor(client, id="m", clock=clock).check()
    assert len(await client.engine.notes(PREFIX)) == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\x00", b'{"intervals": [[1]]}', b'{"intervals": 7}'])
async def test_a_damaged_note_costs_only_what_it_held(engine: Engine, clock: ManualClock, damage: bytes) -> None:
    await some_hours(engine, clock, 2)
    first, *_ = await engine.notes(PREFIX)
    await engine.write_note(first.name, damage, expected=ANY)
    await engine.write_note(f"{PREFIX}elsewhere/x", damage, expected=ANY)
    clock.advance(600)
    assert await completed(engine, clock) == 6
    await compact_stats(engine, clock.now)
    assert await completed(engine, clock) == 6
    assert any(note.name == first.name for note in await engine.notes(PREFIX))  # nothing unreadable is deleted


# --- small things


def test_many_types_become_one() -> None:
    rows: dict[RowKey, StatsRow] = {}
    for number in range(3 * MAX_TYPES):
        row_of(rows, RowKey(f"t{number}", "high")).completed += 1
    assert len(rows) == MAX_TYPES + 1 and rows[RowKey(OTHER_TYPES, "high")].completed == 2 * MAX_TYPES


def test_percentiles_are_near() -> None:
    durations = Durations()
    assert durations.percentile(0.5) is None and durations.mean is None
    for number in range(1, 1001):
        durations.observe(number / 1000)
    assert durations.mean == pytest.approx(0.5005)
    assert durations.percentile(0.5) == pytest.approx(0.5, abs=0.01)
    assert durations.percentile(0.95) == pytest.approx(0.95, abs=0.01)
    durations.observe(1e6)
    assert durations.percentile(1.0) == 21600.0


def test_a_row_survives_the_note() -> None:
    row = StatsRow(completed=3, retried={"lost": 2}, promoted={"high": 1})
    row.wait.observe(0.2)
    assert msgspec.json.decode(msgspec.json.encode(row), type=StatsRow) == row
    assert Interval(0, 60, {}).rows == {}
