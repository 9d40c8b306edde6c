"""Tasks of consumers that died come back without a monitor: code that dequeues looks for expired leases itself."""

import asyncio
from datetime import timedelta

import pytest

import qo
from qo.bucket import Bucket
from qo.buckets.memory import MemoryBucket
from qo.client import Client, Settings
from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.model import EXPIRY_GRACE, Filter, Status, Task
from qo.testing import ManualClock
from tests.conditions import until
from tests.engines.layouts import LAYOUTS

ALWAYS = Settings(recovery_interval=0.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def engines(clock: ManualClock, bucket: Bucket) -> dict[str, Engine]:
    return {"memory": MemoryEngine(clock)} | {name: layout(bucket, clock) for name, layout in LAYOUTS.items()}


@pytest.mark.parametrize("name", ["memory", *LAYOUTS])
async def test_a_task_whose_consumer_died_is_dequeued_again(name: str, clock: ManualClock) -> None:
    async with Client(engines(clock, MemoryBucket(clock))[name], ALWAYS, clock=clock) as client:
        submitted = await client.enqueue("t", queue="jobs")
        dead, alive = await client.consumer("jobs"), await client.consumer("jobs")
        assert await dead.dequeue(lease=30) is not None
        clock.advance(30 + EXPIRY_GRACE - 1)
        assert await alive.dequeue() == []
        clock.advance(1)
        assert await alive.dequeue() == []  # it waits for its back-off now
        clock.advance(10)
        (task,) = await alive.dequeue()
        assert (task.id, task.attempt, task.failures) == (submitted.id, 2, 1)


@pytest.mark.parametrize("mode", ["durable", "local"])
async def test_an_s3_store_recovers_what_a_dead_process_held(mode: str, clock: ManualClock) -> None:
    bucket = MemoryBucket(clock)
    async with await qo.S3Store.create(bucket, clock=clock) as store:
        await store.enqueue("t")
        await store.dequeue()
    clock.advance(310)
    async with await qo.S3Store.create(bucket, mode=mode, settings=ALWAYS, clock=clock) as store:  # type: ignore[arg-type]
        assert await store.dequeue() == []
        clock.advance(10)
        assert [task.attempt for task in await store.dequeue()] == [2]


async def test_a_busy_queue_is_looked_at_too(clock: ManualClock) -> None:
    async with Client(MemoryEngine(clock), ALWAYS, clock=clock) as client:
        lost = await client.enqueue("t")
        await client.dequeue()
        await client.enqueue("t", priority="low")
        await client.enqueue("t", priority="low")
        clock.advance(310)
        assert len(await client.dequeue()) == 1
        task = await client.get(lost.id)
        assert task is not None and task.status is Status.PENDING


async def test_a_check_is_not_repeated_within_the_interval(clock: ManualClock) -> None:
    async with Client(MemoryEngine(clock), Settings(recovery_interval=1e9), clock=clock) as client:
        await client.enqueue("t")
        await client.dequeue()  # the first look
        clock.advance(310)
        await client.dequeue()
        assert (await client.stats())["running"] == 1


async def test_a_waiting_consumer_recovers_expired_tasks(clock: ManualClock) -> None:
    async with Client(MemoryEngine(clock), ALWAYS, clock=clock) as client:
        await client.enqueue("t", max_retries=1, retry=qo.RetryPolicy(initial=0.001, jitter=0.0))
        await client.dequeue()
        waiting = asyncio.create_task(client.dequeue(wait=60))
        clock.advance(310)

        def is_over() -> bool:
            clock.advance(0.1)
            return waiting.done()

        await until(is_over)
        assert [task.attempt for task in waiting.result()] == [2]


async def test_requeue_stale_counts_what_it_took(clock: ManualClock) -> None:
    async with Client(MemoryEngine(clock), Settings(recovery_interval=float("inf")), clock=clock) as client:
        for _ in range(3):
            await client.enqueue("t")
        [kept, *_] = await client.dequeue(batch_size=3, lease=60)
        clock.advance(50)
        await client.heartbeat(kept, lease=60)
        clock.advance(20)
        assert await client.requeue_stale(timeout=timedelta(minutes=5)) == 0  # their last sign of life is too recent
        assert await client.requeue_stale() == 2
        assert await client.requeue_stale() == 0
        clock.advance(50)
        assert await client.requeue_stale(timeout=71) == 0
        assert await client.requeue_stale(timeout=timedelta(seconds=70)) == 1


async def test_requeue_stale_never_ends_a_lease_that_runs(clock: ManualClock) -> None:
    async with Client(MemoryEngine(clock), clock=clock) as client:
        await client.enqueue("t")
        [task] = await client.dequeue(lease=600)
        clock.advance(500)
        assert await client.requeue_stale(timeout=timedelta(minutes=5)) == 0
        await client.ack(task)


class Unlisted(MemoryEngine):
    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        raise qo.StorageError(f"no listing of {limit} {where} {after} {created_before}")


async def test_a_failed_check_does_not_fail_the_claim() -> None:
    async with Client(Unlisted(), ALWAYS) as client:
        await client.enqueue("t")
        assert len(await client.dequeue("t")) == 1
