"""Catch-up of a replica: how much it reads at once, what it knows after a lost race, and how it ends."""

import asyncio
import os
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from qo.bucket import Blob
from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.frame import FrameHeader
from qo.engines.replicated_log.keys import FrameKind
from qo.engines.replicated_log.record_store import LogRecord, RecordStore
from qo.engines.replicated_log.shared_runs import SharedRuns
from qo.errors import StorageError
from qo.model import Filter
from qo.testing import ManualClock
from qo.testing.samples import new, task_id
from tests.conditions import until
from tests.engines.gated_bucket import GatedBucket

T = TypeVar("T")


async def names(engine: Engine) -> set[str]:
    return {task.id for task in await engine.find(Filter(), limit=99)}


def entries(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class PeakBucket(MemoryBucket):
    """Notes how many records are read at the same time."""

    reading = peak = 0

    async def get(self, key: str) -> Blob | None:
        if "/records/" not in key:
            return await super().get(key)
        self.reading += 1
        self.peak = max(self.peak, self.reading)
        await asyncio.sleep(0)
        self.reading -= 1
        return await super().get(key)


async def test_few_large_records_are_read_at_the_same_time(clock: ManualClock) -> None:
    bucket = PeakBucket(clock)
    one, other = (ReplicatedLogEngine(bucket, clock=clock) for _ in range(2))
    for n in range(24):
        await one.add([new(n, payload=b"x" * 1024 * 1024)])
    bucket.peak = 0
    assert await names(other) == {task_id(n) for n in range(24)}
    assert 1 < bucket.peak <= 8
    for engine in (one, other):
        await engine.close()


async def test_a_process_that_expects_many_small_records_holds_few_large_ones_in_memory(clock: ManualClock) -> None:
    bucket = MemoryBucket(clock)
    one, other = (ReplicatedLogEngine(bucket, clock=clock) for _ in range(2))
    await names(other)
    for n in range(60):
        await one.add([new(n)])
    await other.add([new(100)])  # loses a race, and finds many small records
    for n in range(40):
        await one.add([new(200 + n, payload=b"x" * 1024 * 1024)])
    tracemalloc.start()
    try:
        await other.add([new(300)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 * 1024 * 1024
    assert len(await other.find(Filter(), limit=999)) == 102
    for engine in (one, other):
        await engine.close()


async def test_a_commit_that_loses_a_race_during_a_catch_up_reads_before_the_next_one(clock: ManualClock) -> None:
    bucket = MemoryBucket(clock)
    gated = GatedBucket(bucket)
    one, other = (ReplicatedLogEngine(store, clock=clock) for store in (gated, bucket))
    await one.add([new(1)])
    gated.read.clear()
    gated.read_answers.clear()
    reading = asyncio.create_task(one.get([task_id(1)]))
    await gated.read.wait()  # the next record does not exist
    await other.add([new(2)])
    adding = asyncio.create_task(one.add([new(3)]))
    await until(lambda: gated.conflicts == 1)
    gated.read_answers.set()
    assert [task and task.id for task in await reading] == [task_id(1)]
    assert await adding == [(task_id(3), True)]
    assert gated.conflicts == 1
    for engine in (one, other):
        await engine.close()


# --- closing


async def test_a_call_that_waits_when_the_engine_is_closed_loads_no_other_replica(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bucket = GatedBucket(MemoryBucket(clock))
    engine = ReplicatedLogEngine(bucket, clock=clock)
    await engine.add([new(1)])
    bucket.read.clear()
    bucket.read_answers.clear()
    reading = [asyncio.create_task(engine.get([task_id(1)])) for _ in range(2)]
    await bucket.read.wait()
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    reading.append(asyncio.create_task(engine.get([task_id(1)])))
    bucket.read_answers.set()
    await closing
    await asyncio.gather(*reading, return_exceptions=True)
    assert entries(tmp_path) == []


async def test_runs_that_never_end_are_cancelled_at_the_end() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    runs = SharedRuns(never)
    callers = [asyncio.create_task(runs.run()) for _ in range(2)]
    await asyncio.sleep(0)
    callers.append(asyncio.create_task(runs.run()))
    await asyncio.sleep(0)
    await runs.finish(timeout=0.0)
    for answer in await asyncio.gather(*callers, return_exceptions=True):
        assert isinstance(answer, StorageError)


# --- threads


async def test_large_records_are_encoded_and_decoded_in_a_thread(clock: ManualClock) -> None:
    main, threads = threading.get_ident(), set[int]()

    async def run_noted(function: Callable[[], T]) -> T:
        def noted() -> T:
            threads.add(threading.get_ident())
            return function()

        return await asyncio.to_thread(noted)

    bucket = MemoryBucket(clock)
    records = RecordStore(bucket, "a" * 12, 0, run=run_noted)
    header = FrameHeader(FrameKind.RECORD, 0, 1, 1, "b" * 32, last_id="b" * 32)
    await records.append(LogRecord(header, b"small"))
    assert (await records.get(1)) is not None
    assert threads == set()
    large = os.urandom(100_000)
    await records.append(LogRecord(header._replace(first=2, last=2), large))
    assert main not in threads and len(threads) == 1
    threads.clear()
    found = await records.get(2)
    assert found is not None and found.patchset == large
    assert main not in threads and len(threads) == 1
