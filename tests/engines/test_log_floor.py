"""The floor of a log: what a process must not believe after it was asleep while records were deleted.

`docs/log-format.md` describes the rule. Each process has its own clocks; the store has another one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from qo.bucket import ANY, Blob, Bucket
from qo.buckets import open_bucket
from qo.engines.layouts import from_url
from qo.engines.replicated_log.checkpoint import CheckpointStore, DamagedCheckpoint
from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.garbage import LogGarbage
from qo.engines.replicated_log.keys import record_key
from qo.engines.replicated_log.log_meta import read_meta
from qo.engines.replicated_log.log_options import LogOptions
from qo.errors import OutcomeUnknown, StorageError
from qo.testing import ManualClock
from qo.testing.samples import claim, new, stored, task_id
from tests.engines.bucket_troubles import DyingBucket, Killed
from tests.engines.log_checker import Violation, check_bucket
from tests.engines.log_history import RecordingBucket, check_history

DAY = 86_400.0
OPTIONS = LogOptions(block_size=4, image_threshold=1)


class Machine:
    """A process whose clocks may stand still, and whose requests may wait or fail."""

    def __init__(self, bucket: Bucket, *, clock_error: float = 0.0) -> None:
        self.line = Line(bucket, clock_error)
        self.elapsed, self.wall = ManualClock(0.0), ManualClock()
        self.engine = ReplicatedLogEngine(self.line, OPTIONS, elapsed=self.elapsed, wall=self.wall)

    def advance(self, seconds: float) -> None:
        self.elapsed.advance(seconds)
        self.wall.advance(seconds)


class Line:
    """The connection of a machine to the store."""

    def __init__(self, bucket: Bucket, clock_error: float) -> None:
        self._bucket, self._clock_error = bucket, clock_error
        self.keys, self.versions, self.delete = bucket.keys, bucket.versions, bucket.delete
        self.is_dead = False  # the next write of a record fails: the connection was lost while the machine slept
        self.is_cut = False  # the next request fails, whatever it is
        self.is_held, self.arrived, self.release = False, asyncio.Event(), asyncio.Event()

    async def get(self, key: str) -> Blob | None:
        if self.is_cut:
            self.is_cut = False
            raise StorageError("the connection was lost")
        return await self._bucket.get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if self.is_dead and "/records/" in key:
            self.is_dead = False
            raise OutcomeUnknown("the connection was lost")
        if self.is_held and "/records/" in key:
            self.arrived.set()
            await self.release.wait()
        return await self._bucket.put(key, data, expected=expected)

    def now(self) -> float:
        return self._bucket.now() + self._clock_error


class Scene:
    """A machine that falls asleep, and another one that goes on for days."""

    def __init__(self) -> None:
        self.store_clock = ManualClock()
        self.bucket = RecordingBucket(self.store_clock)
        self.sleeper, self.other = Machine(self.bucket), Machine(self.bucket)

    async def begin(self) -> None:
        await self.sleeper.engine.add([new(0)])
        assert (await stored(self.other.engine)).id == task_id(0)

    async def days_pass(self) -> None:
        """The other machine writes, makes images, and deletes what the sleeper would have had to read."""
        for step in range(1, 4):
            for name in range(100 * step, 100 * step + 10):
                await self.other.engine.add([new(name)])
            await self.other.engine.repair()
            self.store_clock.advance(DAY)
            self.other.advance(DAY)
        await self.other.engine.add([new(400)])
        await self.other.engine.repair()
        assert await self.bucket.get(await self.next_record()) is None, (
            "the record of the sleeper's next number is kept"
        )

    async def grow(self) -> str:
        """Two images, of which only the older one contains records that are a day old. Returns the id of the log."""
        for step in (1, 2):
            for name in range(100 * step, 100 * step + 10):
                await self.other.engine.add([new(name)])
            await self.other.engine.repair()
            self.store_clock.advance(DAY / 2)
        return await self.log_id()

    async def log_id(self) -> str:
        meta = await read_meta(self.bucket)
        assert meta is not None
        return meta.id

    async def next_record(self) -> str:
        """The key after the last record that the sleeper knows."""
        return record_key(await self.log_id(), 0, 2)

    async def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.bucket, await self.log_id(), 0)

    def early_deletions(self) -> list[Violation]:
        return [violation for violation in check_history(self.bucket.changes) if violation.invariant == "I3"]

    async def end(self) -> None:
        await check_bucket(self.bucket)
        assert self.early_deletions() == []
        for machine in (self.sleeper, self.other):
            await machine.engine.close()


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    await scene.begin()
    return scene


async def test_a_writer_asleep_past_garbage_collection_does_not_acknowledge(scene: Scene) -> None:
    await scene.days_pass()
    scene.sleeper.advance(3 * DAY)
    await scene.sleeper.engine.add([new(7)])
    assert await scene.bucket.get(await scene.next_record()) is not None, "the number was free"
    assert (await stored(scene.other.engine, 7)).id == task_id(7)
    assert (await stored(scene.sleeper.engine, 400)).id == task_id(400)
    await check_bucket(scene.bucket)


async def test_a_writer_whose_boot_clock_stood_still_does_not_acknowledge(scene: Scene) -> None:
    await scene.days_pass()
    scene.sleeper.wall.advance(3 * DAY)
    await scene.sleeper.engine.add([new(7)])
    assert (await stored(scene.other.engine, 7)).id == task_id(7)


async def test_a_frozen_writer_whose_clocks_stood_still_does_not_acknowledge(scene: Scene) -> None:
    await scene.days_pass()
    scene.sleeper.line.is_dead = True
    with pytest.raises(OutcomeUnknown):
        await scene.sleeper.engine.add([new(7)])
    await scene.sleeper.engine.add([new(7)])
    assert (await stored(scene.other.engine, 7)).id == task_id(7)
    await check_bucket(scene.bucket)


async def test_any_failed_request_of_a_frozen_machine_raises_doubts(scene: Scene) -> None:
    """Only the first request finds the dead connection, and it may be for something else, such as the controls."""
    await scene.days_pass()
    scene.sleeper.line.is_cut = True
    await scene.sleeper.engine.read_note("control")
    await scene.sleeper.engine.add([new(7)])
    assert (await stored(scene.other.engine, 7)).id == task_id(7)
    await check_bucket(scene.bucket)


async def test_a_reader_asleep_past_garbage_collection_reloads(scene: Scene) -> None:
    await scene.days_pass()
    scene.sleeper.advance(3 * DAY)
    assert (await stored(scene.sleeper.engine, 400)).id == task_id(400)
    assert sum((await scene.sleeper.engine.count()).values()) == 32
    assert await claim(scene.sleeper.engine, limit=1)
    await scene.end()


async def test_the_floor_is_read_after_the_write(scene: Scene) -> None:
    """The machine sleeps when its request is on its way: a check before the request would find nothing."""
    line = scene.sleeper.line
    line.is_held = True
    adding = asyncio.create_task(scene.sleeper.engine.add([new(7)]))
    await line.arrived.wait()
    await scene.days_pass()
    scene.sleeper.advance(3 * DAY)
    line.is_held = False
    line.release.set()
    await adding
    assert (await stored(scene.other.engine, 7)).id == task_id(7)
    await check_bucket(scene.bucket)


async def test_a_writer_that_slept_an_hour_needs_no_further_request(scene: Scene) -> None:
    scene.sleeper.advance(OPTIONS.trust - 1)
    checkpoints = await scene.checkpoints()
    await scene.bucket.delete(checkpoints.key)  # would be noticed
    await scene.sleeper.engine.add([new(7)])
    scene.sleeper.advance(OPTIONS.trust + 1)
    with pytest.raises((DamagedCheckpoint, OutcomeUnknown), match="is missing"):
        await scene.sleeper.engine.add([new(8)])


async def test_a_floor_moves_before_anything_is_deleted(scene: Scene) -> None:
    await scene.days_pass()
    log_id = await scene.log_id()
    for name in range(500, 510):
        await scene.other.engine.add([new(name)])
    scene.store_clock.advance(DAY)
    lives = 0
    while True:
        lives += 1
        try:
            await LogGarbage(DyingBucket(scene.bucket, lives), log_id, 0, min_step=1).collect()
        except Killed:
            assert scene.early_deletions() == []
        else:
            break
    await scene.end()


class SlowLine(Line):
    """Calls `meanwhile` before the first request that moves the floor."""

    def __init__(self, bucket: Bucket, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(bucket, 0.0)
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if b'"floor":1,' not in data and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        return await super().put(key, data, expected=expected)


async def test_a_slow_collector_does_not_move_the_floor_back(scene: Scene) -> None:
    log_id, checkpoints = await scene.grow(), await scene.checkpoints()
    floors: list[int] = []

    async def collect_more() -> None:
        scene.store_clock.advance(DAY / 2)
        floors.append((await LogGarbage(scene.bucket, log_id, 0, min_step=1).move_floor()).floor)

    await LogGarbage(SlowLine(scene.bucket, collect_more), log_id, 0, min_step=1).move_floor()
    assert floors == [(await checkpoints.read()).floor]
    assert floors[0] > 15


async def test_a_floor_does_not_pass_an_image_that_the_collector_has_not_verified(scene: Scene) -> None:
    """No merged record begins at this image, so it needs the records after it."""
    log_id, checkpoints = await scene.grow(), await scene.checkpoints()
    scene.store_clock.advance(DAY)

    async def publish() -> None:
        await checkpoints.change(lambda known: known.with_image(replace(known.images[0], seq=15, token="f" * 32)))

    await LogGarbage(SlowLine(scene.bucket, publish), log_id, 0, min_step=1).move_floor()
    assert (await checkpoints.read()).floor == 1


@pytest.mark.parametrize("clock_error", [-2 * DAY, 2 * DAY])
async def test_a_garbage_collector_with_a_wrong_clock_deletes_nothing_young(clock_error: float) -> None:
    clock = ManualClock()
    bucket = RecordingBucket(clock)
    machine = Machine(bucket, clock_error=clock_error)
    for step in range(4):
        for name in range(10 * step, 10 * step + 10):
            await machine.engine.add([new(name)])
        await machine.engine.repair()
        clock.advance(60)
    assert len([key async for key in bucket.keys("log/") if "/records/" in key]) == 40
    await check_bucket(bucket)
    await machine.engine.close()


async def test_a_zombie_record_below_the_floor_is_ignored_and_collected(scene: Scene) -> None:
    await scene.days_pass()
    key = await scene.next_record()
    zombie = next(change.data for change in scene.bucket.changes if change.key == key)
    assert zombie is not None
    await scene.bucket.put(key, zombie, expected=ANY)
    newcomer = Machine(scene.bucket)
    scene.sleeper.advance(3 * DAY)
    for engine in (newcomer.engine, scene.sleeper.engine, scene.other.engine):
        assert sum((await engine.count()).values()) == 32
    await newcomer.engine.repair()
    assert await scene.bucket.get(key) is None
    await check_bucket(scene.bucket)


async def test_a_missing_checkpoint_is_damage_not_a_new_log(scene: Scene) -> None:
    checkpoints = await scene.checkpoints()
    await scene.bucket.delete(checkpoints.key)
    newcomer = Machine(scene.bucket)
    with pytest.raises(DamagedCheckpoint, match="restore the newest version"):
        await newcomer.engine.add([new(1)])
    with pytest.raises(DamagedCheckpoint, match=checkpoints.key):
        await stored(newcomer.engine)
    assert await scene.bucket.get(checkpoints.key) is None
    assert await scene.bucket.get(await scene.next_record()) is None


# --- folders


async def test_a_machine_that_was_frozen_with_its_clocks_believes_only_the_checkpoint_of_a_folder(
    tmp_path: Path,
) -> None:
    """No connection to a folder is lost, so no request fails when the machine goes on."""
    url = f"file://{tmp_path}?layout=log"
    frozen = from_url(url)
    await frozen.add([new(0)])
    later = LogOptions(block_size=4, image_threshold=1, min_record_age=0.0, trust=0.0)  # a day has passed for it
    other = ReplicatedLogEngine(open_bucket(f"file://{tmp_path}"), later)
    for step in range(1, 4):
        for name in range(100 * step, 100 * step + 10):
            await other.add([new(name)])
        await other.repair()
    assert [answer.id for answer in await frozen.add([new(7)])] == [task_id(7)]
    assert (await stored(other, 7)).id == task_id(7)
    for engine in (frozen, other):
        await engine.close()
