"""The checkpoint of a shard of a log: changes by several processes, lost answers and damage."""

import asyncio

import pytest
from msgspec.structs import replace

from qo.bucket import ANY, Blob
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log.checkpoint import CheckpointStore, DamagedCheckpoint, LogCheckpoint, LogImage
from qo.errors import OutcomeUnknown
from qo.testing import Faults, FaultyBucket, ManualClock
from qo.testing.clock import simulate

LOG = "0123456789ab"


def image(seq: int, token: str = "a" * 32) -> LogImage:
    return LogImage(seq=seq, id="b" * 32, token=token, parts=1, bytes=10, raw_bytes=100, schema=7)


async def created() -> tuple[MemoryBucket, CheckpointStore]:
    bucket = MemoryBucket(ManualClock())
    store = CheckpointStore(bucket, LOG, 3)
    await store.create()
    return bucket, store


async def test_a_new_checkpoint_allows_the_first_number_and_has_no_image() -> None:
    bucket, store = await created()
    checkpoint = await store.read()
    assert (checkpoint.floor, checkpoint.images, checkpoint.newest_image) == (1, (), None)
    assert [key async for key in bucket.keys("")] == [f"log/{LOG}/03/checkpoint.json"]


async def test_a_change_that_changes_nothing_writes_nothing() -> None:
    bucket, store = await created()
    before = await bucket.get(store.key)
    assert await store.change(lambda checkpoint: checkpoint) == await store.read()
    assert await bucket.get(store.key) == before


async def test_the_floor_never_moves_back() -> None:
    _, store = await created()
    await store.change(lambda checkpoint: checkpoint.with_floor(90))
    await store.change(lambda checkpoint: replace(checkpoint, floor=1).with_image(image(100)))
    assert (await store.read()).floor == 90


async def test_two_images_are_kept_the_newest_first() -> None:
    _, store = await created()
    for seq in (64, 192, 128):
        await store.change(lambda checkpoint, seq=seq: checkpoint.with_image(image(seq)))  # type: ignore[misc]
    await store.change(lambda checkpoint: checkpoint.with_image(image(192, "c" * 32)))
    assert [(known.seq, known.token[0]) for known in (await store.read()).images] == [(192, "a"), (128, "a")]


@pytest.mark.parametrize("seed", range(8))
def test_no_change_is_lost_or_made_twice_on_a_faulty_bucket(seed: int) -> None:
    """Each process moves the floor up by one, as often as it knows the outcome of."""

    async def history() -> tuple[int, int, int]:
        faults = Faults(seed, lost_request=0.05, lost_response=0.1, late=0.03, refused=0.05)
        bucket = FaultyBucket(MemoryBucket(ManualClock()), faults)
        await CheckpointStore(bucket, LOG, 0).create()
        changed = unknown = 0

        async def process() -> None:
            nonlocal changed, unknown
            for _ in range(5):
                store = CheckpointStore(bucket, LOG, 0)
                try:
                    await store.change(lambda checkpoint: checkpoint.with_floor(checkpoint.floor + 1))
                    changed += 1
                except OutcomeUnknown:
                    unknown += 1

        await asyncio.gather(*(process() for _ in range(4)))
        await bucket.settle()
        return changed, unknown, (await CheckpointStore(bucket, LOG, 0).read()).floor - 1

    changed, unknown, moved = simulate(history(), seed)
    assert changed <= moved <= changed + unknown
    assert changed + unknown == 20


async def test_a_missing_checkpoint_is_damage_not_a_new_log() -> None:
    bucket, store = await created()
    await bucket.delete(store.key)
    for request in (store.read, store.touch, lambda: store.change(lambda checkpoint: checkpoint.with_floor(2))):
        with pytest.raises(DamagedCheckpoint, match=rf"{store.key} is missing; restore the newest version"):
            await request()
    assert await bucket.get(store.key) is None


async def test_every_flipped_bit_of_a_checkpoint_is_detected() -> None:
    bucket, store = await created()
    await store.change(lambda checkpoint: checkpoint.with_floor(9).with_image(image(64)))
    whole = await bucket.get(store.key)
    assert whole is not None
    for bit in range(0, 8 * len(whole.data), 7):
        data = bytearray(whole.data)
        data[bit // 8] ^= 1 << bit % 8
        await bucket.put(store.key, bytes(data), expected=ANY)
        with pytest.raises(DamagedCheckpoint, match="cannot be read"):
            await store.read()
    await bucket.put(store.key, whole.data.rstrip(), expected=ANY)
    with pytest.raises(DamagedCheckpoint, match="has no checksum"):
        await store.read()


async def test_a_response_that_was_damaged_once_is_read_again() -> None:
    class Noisy(MemoryBucket):
        noise = 2

        async def get(self, key: str) -> Blob | None:
            blob = await super().get(key)
            if blob is None or not self.noise:
                return blob
            self.noise -= 1
            return blob._replace(data=blob.data[:-40])

    bucket = Noisy(ManualClock())
    store = CheckpointStore(bucket, LOG, 0)
    await store.create()
    assert await store.read() == LogCheckpoint(writes=(await store.read()).writes)


async def test_a_touched_checkpoint_shows_the_time_of_the_store() -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    store = CheckpointStore(bucket, LOG, 0)
    await store.create()
    clock.advance(86_400.0)
    touched = await store.touch()
    assert touched.written_at == clock()
    assert touched.checkpoint.floor == 1
