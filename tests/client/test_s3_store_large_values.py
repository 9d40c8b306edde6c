"""`S3Store` keeps large payloads and results beside its database, like the same bucket opened by URL."""

from pathlib import Path

import pytest

import qo
from qo.buckets.memory import MemoryBucket
from qo.engines.large_values import MIN_ORPHAN_AGE
from qo.engines.sqlite_object.stored_image import term_of
from qo.testing import ManualClock
from tests.engines.fast_time import pass_time, run

INF = float("inf")
TERM = term_of(INF)  # seconds after a flush for which a local store keeps others from writing
LARGE = "x" * 400_000
MODES = pytest.mark.parametrize("mode", ["durable", "local"])


async def large_values(bucket: MemoryBucket) -> list[str]:
    return [key async for key in bucket.keys("") if "data/" in key]


@MODES
async def test_a_large_payload_and_result_come_back_as_they_went_in(mode: str, tmp_path: Path) -> None:
    async with await qo.S3Store.create(f"file://{tmp_path}", mode=mode) as store:  # type: ignore[arg-type]
        submitted = await (await store.producer("jobs")).enqueue({"data": LARGE})
        consumer = await store.consumer("jobs")
        (task,) = await consumer.dequeue()
        assert qo.decode(task.payload) == {"data": LARGE}
        await consumer.ack(task, LARGE)
        assert await submitted.result() == LARGE
    assert (tmp_path / "queue.sqlite=").stat().st_size < len(LARGE)


@MODES
async def test_the_same_bucket_by_url_reads_what_the_store_wrote_and_the_other_way_round(
    mode: str, tmp_path: Path
) -> None:
    async with await qo.S3Store.create(f"file://{tmp_path}", mode=mode, prefix="deep") as store:  # type: ignore[arg-type]
        await store.enqueue("t", {"data": LARGE})
    async with qo.connect(f"file://{tmp_path}/deep?layout=sqlite") as client:
        [task] = await client.dequeue()
        assert qo.decode(task.payload) == {"data": LARGE}
        await client.ack(task, LARGE)
    async with await qo.S3Store.create(f"file://{tmp_path}", mode=mode, prefix="deep") as store:  # type: ignore[arg-type]
        assert await store.result(task.id) == LARGE


@MODES
async def test_a_payload_over_the_limit_is_refused(mode: str) -> None:
    async with await qo.S3Store.create(MemoryBucket(), mode=mode, payload_limit=500_000) as store:  # type: ignore[arg-type]
        await store.enqueue("t", LARGE)
        with pytest.raises(qo.InvalidTask, match="payload"):
            await store.enqueue("t", LARGE + LARGE)


@MODES
async def test_deleting_a_task_deletes_its_large_values(mode: str) -> None:
    bucket = MemoryBucket()
    store = await qo.S3Store.create(bucket, mode=mode)  # type: ignore[arg-type]
    await store.enqueue("t", LARGE)
    [task] = await store.dequeue()
    await store.ack(task, LARGE)
    await store.flush()
    assert len(await large_values(bucket)) == 2
    await store.delete(task.id)
    await store.flush()
    await store.close()
    assert await large_values(bucket) == []


async def test_stores_under_two_prefixes_keep_their_large_values_apart() -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    one, other = [await qo.S3Store.create(bucket, prefix=prefix, clock=clock) for prefix in ("one", "other")]
    await one.enqueue("t", LARGE)
    await other.enqueue("t", LARGE)
    assert sorted(key.split("/")[0] for key in await large_values(bucket)) == ["one", "other"]
    clock.advance(MIN_ORPHAN_AGE + 1)
    await one.engine.repair()
    assert len(await large_values(bucket)) == 2


async def test_a_lost_race_leaves_no_large_value_behind() -> None:
    bucket = MemoryBucket()
    a, b = await qo.S3Store.create(bucket), await qo.S3Store.create(bucket)
    await a.enqueue("t")
    with pytest.raises(qo.ConflictError):
        await b.enqueue("t", LARGE)
    assert await large_values(bucket) == []
    await b.enqueue("t", LARGE)
    assert len(await large_values(bucket)) == 1


def test_a_local_delete_that_never_reached_the_bucket_keeps_the_large_values() -> None:
    """Another process's write undoes the delete: the task is back, and so is its payload."""

    async def undone() -> None:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        store = await qo.S3Store.create(bucket, mode="local", interval=INF, clock=clock)
        submitted = await store.enqueue("t", LARGE)
        await store.cancel(submitted.id)
        await store.flush()
        await store.delete(submitted.id)
        clock.advance(TERM)
        async with await qo.S3Store.create(bucket, clock=clock) as other:
            await other.controls.pause()
        with pytest.raises(qo.ConflictError):
            await store.flush()
        await pass_time(1)
        task = await store.get(submitted.id)
        assert task is not None and qo.decode(task.payload) == LARGE
        await store.close()

    run(undone())


async def test_the_repair_of_a_local_store_keeps_what_others_have_submitted() -> None:
    """A local store reads its own copy of the database, which may be older than the bucket's."""
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    store = await qo.S3Store.create(bucket, mode="local", interval=INF, clock=clock)
    await store.enqueue("t")
    await store.flush()
    clock.advance(TERM)
    async with await qo.S3Store.create(bucket, clock=clock) as other:
        submitted = await other.enqueue("t", LARGE)
    clock.advance(MIN_ORPHAN_AGE + 1)
    await store.engine.repair()
    async with await qo.S3Store.create(bucket, clock=clock) as other:
        task = await other.get(submitted.id)
        assert task is not None and qo.decode(task.payload) == LARGE
    await store.close()
