"""`S3Store` as docs/s3-store.md describes it."""

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

import qo
from qo.bucket import ANY
from qo.buckets.memory import MemoryBucket
from qo.testing import Faults, Latency, S3Server
from tests.conditions import until
from tests.engines.fast_time import pass_time, run
from tests.engines.gated_bucket import GatedBucket

INF = float("inf")


async def test_the_durable_example(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    async with S3Server("my-pgqrs-bucket", latency=Latency(put=0.02)) as server:
        store = await qo.S3Store.create(bucket="my-pgqrs-bucket", mode="durable", endpoint=server.endpoint)
        producer = await store.producer("jobs")
        submitted = await producer.enqueue({"data": 1})
        other = await qo.S3Store.create(bucket="my-pgqrs-bucket", endpoint=server.endpoint)
        consumer = await other.consumer("jobs")
        (job,) = await consumer.dequeue()
        assert (job.id, job.payload) == (submitted.id, b'{"data":1}')
        await consumer.ack(job, "done")
        assert await store.result(submitted.id) == "done"
        await store.close()
        await other.close()


async def test_a_network_that_goes_and_comes_back_delays_the_callers_and_no_more() -> None:
    async with S3Server() as server:
        store = await qo.S3Store.create(server.url)
        await store.enqueue("t")
        server.faults = Faults(0, lost_request=1.0)
        enqueuing = [asyncio.create_task(store.enqueue("t")) for _ in range(5)]
        before = server.requests
        await until(lambda: server.requests >= before + 4)
        assert not any(each.done() for each in enqueuing)
        server.faults = Faults(0)
        assert [(await each).new for each in enqueuing] == [True] * 5
        assert (await store.stats())["pending"] == 6
        await store.close()


async def test_the_local_example(tmp_path: Path) -> None:
    store = await qo.S3Store.create(bucket=f"file://{tmp_path}", mode="local", interval=INF)
    producer = await store.producer("jobs")
    consumer = await store.consumer("jobs")
    await producer.enqueue({"data": 2})
    (job,) = await consumer.dequeue()
    assert job.payload == b'{"data":2}'
    await consumer.ack(job)
    assert not (tmp_path / "queue.sqlite=").exists()
    await store.flush()
    async with await qo.S3Store.create(bucket=f"file://{tmp_path}") as other:
        assert (await other.stats())["completed"] == 1
    await store.close()


async def test_the_mode_is_chosen_once() -> None:
    store = await qo.S3Store.create(MemoryBucket())
    assert store.mode == "durable"
    with pytest.raises(AttributeError):
        store.mode = "local"  # type: ignore[misc]
    with pytest.raises(qo.InvalidSetting, match="durable, local"):
        await qo.S3Store.create(MemoryBucket(), mode="fast")  # type: ignore[arg-type]
    with pytest.raises(qo.InvalidSetting, match="interval"):
        await qo.S3Store.create(MemoryBucket(), interval=-1)


async def test_of_two_nodes_the_later_is_told_and_healthy_again() -> None:
    bucket = MemoryBucket()
    a, b = await qo.S3Store.create(bucket), await qo.S3Store.create(bucket)
    at_a, at_b = await a.producer("jobs"), await b.producer("jobs")
    await at_a.enqueue(1)
    answers = await asyncio.gather(*(at_b.enqueue(n) for n in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [qo.ConflictError] * 3
    assert (await b.stats())["pending"] == 1  # what A wrote, and nothing of B's
    await at_b.enqueue(2)
    assert (await a.stats())["pending"] == 2


def test_a_heartbeat_outlives_a_lost_race() -> None:
    async def beating() -> None:
        bucket = MemoryBucket()
        a, b = await qo.S3Store.create(bucket), await qo.S3Store.create(bucket)
        await a.enqueue("t")
        (task,) = await a.dequeue()
        async with qo.HeartbeatManager(a, task, interval=10) as heartbeat:
            await b.controls.pause()  # another node writes: the first beat comes too late
            await pass_time(35)
        assert not heartbeat.lost
        renewed = await b.get(task.id)
        assert renewed is not None and renewed.version > task.version

    run(beating())


def test_a_node_steps_by_hand() -> None:
    async def step() -> None:
        store = await qo.S3Store.create(MemoryBucket(), interval=INF)
        producer = await store.producer("jobs")
        enqueuing = asyncio.create_task(producer.enqueue(1))
        await pass_time(3600)
        assert (await store.stats())["pending"] == 0 and not enqueuing.done()
        await store.flush()
        assert (await enqueuing).new
        assert (await store.stats())["pending"] == 1

    run(step())


async def test_stores_under_two_prefixes_do_not_meet() -> None:
    bucket = MemoryBucket()
    one, other = [await qo.S3Store.create(bucket, prefix=prefix) for prefix in ("one", "other/deep/")]
    await one.enqueue("t")
    assert (await other.stats())["pending"] == 0
    await other.enqueue("t")
    assert [key async for key in bucket.keys("")] == ["one/queue.sqlite", "other/deep/queue.sqlite"]


async def test_what_is_not_a_queue_is_refused_at_the_door() -> None:
    bucket = MemoryBucket()
    await bucket.put("queue.sqlite", b"junk", expected=ANY)
    with pytest.raises(qo.StorageError, match="does not hold a queue"):
        await qo.S3Store.create(bucket)
    async with S3Server() as server:
        missing = server.url.replace("//bucket", "//missing")
        with pytest.raises(qo.StorageError, match="no bucket 'missing'"):
            await qo.S3Store.create(missing)


@pytest.mark.parametrize("mode", ["durable", "local"])
def test_background_work_ends_with_the_object(mode: str) -> None:
    async def dropped() -> None:
        kept = MemoryBucket()
        store = await qo.S3Store.create(kept, mode=mode, interval=INF)  # type: ignore[arg-type]
        leaving = asyncio.create_task(store.enqueue("t"))
        await pass_time(1)
        leaving.cancel()  # in `durable` its caller waits for a flush that nobody asks for
        await asyncio.wait([leaving])
        there = weakref.ref(store)
        del store, leaving
        gc.collect()
        assert there() is None
        await pass_time(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with await qo.S3Store.create(kept) as other:
            assert (await other.stats())["pending"] == (mode == "local")  # a last flush has saved it

    run(dropped())


def test_it_ends_even_if_the_bucket_is_gone() -> None:
    async def dropped() -> None:
        bucket = GatedBucket(MemoryBucket())
        store = await qo.S3Store.create(bucket, mode="local")
        bucket.is_cut = True
        await store.enqueue("t")
        await pass_time(60)
        assert len(asyncio.all_tasks()) == 2
        del store
        gc.collect()
        await pass_time(60)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(dropped())
