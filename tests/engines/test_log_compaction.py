"""Merged records, images and start-up of the layout `log`. `log_checker.py` verifies the objects independently."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from qo.bucket import ANY, Blob, Bucket
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log import images
from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.log_options import LogOptions
from qo.engines.replicated_log.merged_records import MergedRange, block_of, chosen
from qo.errors import OutcomeUnknown, StorageError
from qo.model import Task, complete
from qo.testing import Faults, FaultyBucket, ManualClock
from qo.testing.clock import simulate
from qo.testing.samples import claim, new, task_id
from tests.engines.bucket_troubles import DyingBucket, Killed
from tests.engines.log_checker import check_bucket

SMALL = LogOptions(block_size=4, image_threshold=1, min_record_age=0.0, trust=0.0)
MERGING = LogOptions(block_size=4, image_threshold=10**9, min_record_age=0.0, trust=0.0)


def process(bucket: Bucket, clock: ManualClock, options: LogOptions = SMALL) -> ReplicatedLogEngine:
    return ReplicatedLogEngine(bucket, options, clock=clock, elapsed=clock, wall=clock)


async def stored_tasks(engine: ReplicatedLogEngine) -> list[Task]:
    return (await engine.snapshot()).tasks


async def newcomer_tasks(bucket: Bucket, clock: ManualClock) -> list[Task]:
    newcomer = process(bucket, clock)
    try:
        return await stored_tasks(newcomer)
    finally:
        await newcomer.close()


async def work(engine: ReplicatedLogEngine, first: int, number: int, *, worker: str = "w") -> None:
    """Add tasks, and complete every second one."""
    for name in range(first, first + number):
        await engine.add([new(name)])
        if name % 2:
            tasks = await claim(engine, limit=1, worker_id=worker)
            await engine.apply([complete(task, b"1") for task in tasks])


async def keys(bucket: Bucket, part: str) -> list[str]:
    return [key async for key in bucket.keys("log/") if part in key]


def test_blocks_are_aligned_and_the_first_one_begins_with_number_1() -> None:
    assert block_of(1, 64) == MergedRange(1, 63)
    assert block_of(64, 64) == block_of(127, 64) == MergedRange(64, 127)
    assert block_of(5000, 64, 2) == MergedRange(4096, 8191)
    assert MergedRange(64, 127).size == 64


def test_a_newcomer_takes_the_longest_merged_records() -> None:
    ranges = [MergedRange(*pair) for pair in ((1, 3), (4, 7), (4, 15), (8, 11), (16, 19), (24, 27))]
    assert chosen(3, ranges) == [MergedRange(4, 15), MergedRange(16, 19)]
    assert chosen(0, ranges)[0] == MergedRange(1, 3)
    assert chosen(5, ranges) == []


async def test_a_newcomer_has_what_a_live_replica_has() -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    engine = process(bucket, clock)
    for step in range(4):
        await work(engine, 10 * step, 8)
        clock.advance(10)
        await engine.repair()
        await check_bucket(bucket)
        assert await newcomer_tasks(bucket, clock) == await stored_tasks(engine)
    assert await keys(bucket, "/merged/")
    assert len({key.split("/")[4] for key in await keys(bucket, "/images/")}) == 2
    assert len(await keys(bucket, "/records/")) < 30
    await engine.close()


async def test_a_block_is_merged_by_the_process_that_completes_it() -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    first, second = process(bucket, clock, MERGING), process(bucket, clock, MERGING)
    for name in range(8):
        await (first, second)[name % 2].add([new(name)])
    await first.close()
    await second.close()
    names = sorted(key.rpartition("/")[2] for key in await keys(bucket, "/merged/"))
    assert names == [f"{1:016x}-{3:016x}", f"{4:016x}-{7:016x}"]
    await check_bucket(bucket)


async def test_higher_levels_are_merged_in_repair() -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    engine = process(bucket, clock, MERGING)
    for name in range(70):
        await engine.add([new(name)])
    for key in await keys(bucket, f"/merged/{8:016x}"):
        await bucket.delete(key)  # the process that completed this block was killed
    await engine.repair()
    names = {key.rpartition("/")[2] for key in await keys(bucket, "/merged/")}
    assert {f"{8:016x}-{11:016x}", f"{16:016x}-{31:016x}", f"{1:016x}-{63:016x}"} <= names
    await check_bucket(bucket)
    await engine.close()


@pytest.mark.parametrize("seed", range(3))
def test_two_compactors_at_once(seed: int) -> None:
    async def history() -> None:
        clock = ManualClock()
        inner = MemoryBucket(clock)
        faults = Faults(seed, lost_request=0.01, lost_response=0.03, late=0.01, refused=0.02)
        bucket = FaultyBucket(inner, faults) if seed % 2 else inner
        engines = [process(bucket, clock) for _ in range(3)]
        dice = random.Random(seed)

        async def live(number: int) -> None:
            for step in range(8):
                try:
                    await engines[number].add([new(1000 * number + step)])
                    await claim(engines[number], limit=1)
                    if dice.random() < 0.7:
                        await engines[number].repair()
                except StorageError:
                    continue  # an injected fault was in the way for too long
                clock.advance(1)

        await asyncio.gather(*(live(number) for number in range(3)))
        if isinstance(bucket, FaultyBucket):
            await bucket.settle()
        states = [await stored_tasks(process(inner, clock)) for _ in range(2)]
        assert states[0] == states[1]
        await check_bucket(inner)
        for engine in engines:
            await engine.close()

    simulate(history(), seed)


async def grown(clock: ManualClock) -> MemoryBucket:
    """A log with two images, whose next repair writes a third one, merges and deletes."""
    bucket = MemoryBucket(clock)
    engine = process(bucket, clock)
    for step in range(3):
        await work(engine, 10 * step, 4)
        clock.advance(10)
        if step < 2:
            await engine.repair()
    await engine.close()
    return bucket


async def test_a_compactor_killed_at_each_request() -> None:
    clock = ManualClock()
    whole = await grown(clock)
    expected = await newcomer_tasks(whole, clock)
    lives, checked = 0, dict[str, bytes]()
    while True:
        lives += 1
        bucket = await copied(whole, clock)
        killed = process(DyingBucket(bucket, lives), clock)
        try:
            await killed.repair()
        except (Killed, OutcomeUnknown):  # the latter if the commit loop was killed
            pass
        else:
            break
        content = {key: blob.data async for key, blob in blobs(bucket)}
        if content == checked:  # the last request was a read
            continue
        await check_bucket(bucket)
        checked = content
        if lives % 8 == 0:
            successor = process(bucket, clock)
            await successor.repair()
            assert await newcomer_tasks(bucket, clock) == expected
            await successor.close()
    await check_bucket(bucket)
    assert lives > 20


async def copied(bucket: Bucket, clock: ManualClock) -> MemoryBucket:
    copy = MemoryBucket(clock)
    async for key, blob in blobs(bucket):
        await copy.put(key, blob.data, expected=ANY)
    return copy


async def blobs(bucket: Bucket) -> AsyncIterator[tuple[str, Blob]]:
    for key in [key async for key in bucket.keys("")]:
        blob = await bucket.get(key)
        assert blob is not None
        yield key, blob


# --- images


async def test_parts_of_two_images_never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes write an image of the same position at the same time, in many parts."""
    monkeypatch.setattr(images, "PART_SIZE", 4096)
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    engines = [process(bucket, clock) for _ in range(2)]
    await engines[0].add([new(name) for name in range(50)])
    assert await stored_tasks(engines[1]) == await stored_tasks(engines[0])
    await asyncio.gather(*(engine.repair() for engine in engines))
    parts = await keys(bucket, "/images/")
    assert len({key.split("/")[4] for key in parts}) == 2
    assert len(parts) > 20
    await check_bucket(bucket)
    assert await newcomer_tasks(bucket, clock) == await stored_tasks(engines[0])
    for engine in engines:
        await engine.close()


async def test_an_image_is_of_one_moment_while_tasks_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PART_SIZE", 4096)
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    engine = process(bucket, clock)
    await engine.add([new(name) for name in range(50)])
    repairing = asyncio.create_task(engine.repair())
    name = 50
    while not repairing.done():
        await engine.add([new(name)])
        name += 1
    await repairing
    expected = await stored_tasks(engine)
    await engine.close()
    assert await keys(bucket, "/images/")
    assert name > 52
    await check_bucket(bucket)
    assert await newcomer_tasks(bucket, clock) == expected


class Interrupted:
    """Calls `interrupt` once before a request whose key contains `part`."""

    def __init__(self, bucket: Bucket, part: str = "", interrupt: Callable[[], Awaitable[None]] | None = None) -> None:
        self._bucket, self._part, self._interrupt = bucket, part, interrupt
        self.delete, self.versions, self.now = bucket.delete, bucket.versions, bucket.now

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await self._bucket.put(key, data, expected=expected)

    async def _meet(self, key: str) -> None:
        if self._part in key and self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            await interrupt()

    async def get(self, key: str) -> Blob | None:
        await self._meet(key)
        return await self._bucket.get(key)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        await self._meet(prefix)
        for key in [key async for key in self._bucket.keys(prefix, after=after)]:
            yield key


async def test_an_image_that_took_too_long_is_not_used() -> None:
    """Records after it were deleted meanwhile, so nothing leads from it to the end of the log."""
    clock = ManualClock()
    bucket = await grown(clock)
    engine = process(bucket, clock, MERGING)
    is_slow = asyncio.Event()

    class Slow(Interrupted):
        async def put(self, key: str, data: bytes, *, expected: str) -> str:
            if "/images/" in key and not is_slow.is_set():
                is_slow.set()
                await collect_beside(engine, clock)
            return await bucket.put(key, data, expected=expected)

    await work(engine, 4000, 8)  # an image is due
    slow = process(Slow(bucket), clock)
    await slow.repair()
    assert is_slow.is_set()
    await check_bucket(bucket)
    assert await newcomer_tasks(bucket, clock) == await stored_tasks(engine)
    for each in (slow, engine):
        await each.close()


async def collect_beside(engine: ReplicatedLogEngine, clock: ManualClock) -> None:
    """Compact, and delete what that replaces."""
    for step in range(3):
        await work(engine, 5000 + 10 * step, 8)
        clock.advance(10)
        await engine.repair()


@pytest.mark.parametrize("part", ["/checkpoint.json", "/images/", "/merged/", "/records/"])
async def test_a_loader_beside_the_garbage_collector(part: str) -> None:
    """Whatever the loader has planned is deleted before it is read."""
    clock = ManualClock()
    bucket = await grown(clock)
    engine = process(bucket, clock)
    newcomer = process(Interrupted(bucket, part, lambda: collect_beside(engine, clock)), clock)
    tasks = await stored_tasks(newcomer)
    assert task_id(5027) in {task.id for task in tasks}
    assert tasks == await stored_tasks(engine)
    await check_bucket(bucket)
    for each in (newcomer, engine):
        await each.close()


async def test_loading_stays_proportional_to_changes() -> None:
    """A newcomer reads an image and what has changed since, however long the history is."""
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    engine = process(bucket, clock)
    read: list[int] = []

    class Counting(Interrupted):
        async def get(self, key: str) -> Blob | None:
            blob = await super().get(key)
            read.append(len(blob.data) if blob else 0)
            return blob

    for step in range(8):
        for _ in range(4):
            await engine.add([new(0)])
            await engine.apply([complete(task, b"1") for task in await claim(engine)])
            await engine.delete([task_id(0)])
        clock.advance(10)
        await engine.repair()
        if step in {3, 7}:
            await newcomer_tasks(Counting(bucket), clock)
            read.append(-1)
    early, late = read[: read.index(-1)], read[read.index(-1) + 1 : -1]
    assert sum(late) < 2 * sum(early)
    assert len(late) < 2 * len(early)
    await engine.close()
