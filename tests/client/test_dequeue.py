"""Tasks out: leases taken, kept, settled and lost."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidTask, LeaseLost, TaskNotFound
from qo.model import ClaimRequest, Status, Task, expire
from qo.testing import ManualClock

Settle = Callable[[Client, Task | str], Coroutine[Any, Any, None]]

SETTLING: dict[str, tuple[Settle, Status]] = {
    "ack": (lambda client, task: client.ack(task, {"ok": True}), Status.COMPLETED),
    "nack": (lambda client, task: client.nack(task, "boom"), Status.PENDING),
    "release": (lambda client, task: client.release(task), Status.PENDING),
}


async def one(client: Client, **options: Any) -> Task:
    (task,) = await client.dequeue(**options)
    return task


async def stored(client: Client, task_id: str) -> Task:
    task = await client.get(task_id)
    assert task is not None
    return task


async def test_dequeue_leases_what_comes_first(client: Client, clock: ManualClock) -> None:
    await client.enqueue("t", priority="low")
    urgent = await client.enqueue("t", priority="high")
    task = await one(client, lease=timedelta(minutes=1))
    assert (task.id, task.status, task.attempt, task.lease_expires_at) == (urgent.id, Status.RUNNING, 1, clock.now + 60)


async def test_dequeue_takes_only_what_was_requested(client: Client) -> None:
    await client.enqueue("a", queue="x")
    await client.enqueue("b", queue="y")
    await client.enqueue("b", queue="y", needs=["gpu"])
    assert (
        await client.dequeue("nothing")
        == await client.dequeue(queue="nowhere")
        == await client.dequeue("a", queue="y")
        == []
    )
    assert len(await client.dequeue("b", batch_size=9)) == 1
    assert len(await client.dequeue(queue="y", batch_size=9, capabilities=["gpu"])) == 1
    assert len(await client.dequeue(batch_size=9)) == 1


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("type", {"type": "a b"}),
        ("queue", {"queue": "a/b"}),
        ("capabilities", {"capabilities": "gpu"}),
        ("batch_size", {"batch_size": 0}),
        ("batch_size", {"batch_size": -1}),
        ("batch_size", {"batch_size": 1.5}),
        ("lease", {"lease": 0}),
        ("lease", {"lease": float("nan")}),
        ("lease", {"lease": float("inf")}),
    ],
)
async def test_nonsense_is_refused_before_anything_is_leased(
    client: Client, field: str, options: dict[str, Any]
) -> None:
    submitted = await client.enqueue("t")
    with pytest.raises(InvalidTask, match=f"^{field}: "):
        await client.dequeue(**options)
    assert (await stored(client, submitted.id)).attempt == 0


@pytest.mark.parametrize("by_id", [False, True], ids=["by task", "by id"])
@pytest.mark.parametrize("how", SETTLING)
async def test_a_held_task_is_settled(client: Client, how: str, *, by_id: bool) -> None:
    await client.enqueue("t")
    task = await one(client)
    settle, status = SETTLING[how]
    await settle(client, task.id if by_id else task)
    after = await stored(client, task.id)
    assert (after.status, after.failures) == (status, int(how == "nack"))
    with pytest.raises(TaskNotFound, match="was not dequeued by this client, or is already settled"):
        await settle(client, task.id)


async def test_a_result_is_kept_and_one_that_cannot_be_is_refused_while_the_lease_is_held(client: Client) -> None:
    await client.enqueue("t")
    task = await one(client)
    for result in (float("nan"), "x" * 300_000, object()):
        with pytest.raises(InvalidTask, match=r"^result: "):
            await client.ack(task.id, result)
    await client.ack(task.id, {"n": 1})
    assert (await stored(client, task.id)).result == b'{"n":1}'


async def test_a_failed_task_is_retried_after_its_back_off_or_the_requested_delay(
    client: Client, clock: ManualClock
) -> None:
    await client.enqueue("t", max_retries=1)
    task = await one(client)
    await client.nack(task, "boom", delay=timedelta(seconds=7))
    after = await stored(client, task.id)
    assert (after.available_at, after.error, after.failures) == (clock.now + 7, "boom", 1)
    clock.advance(7)
    await client.nack(await one(client), "again")
    assert (await stored(client, task.id)).status is Status.FAILED


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "5", True])
async def test_a_delay_that_makes_no_sense_is_refused_and_the_lease_kept(client: Client, delay: Any) -> None:
    await client.enqueue("t")
    task = await one(client)
    with pytest.raises(InvalidTask, match=r"^delay: "):
        await client.nack(task, delay=delay)
    with pytest.raises(InvalidTask, match=r"^delay: "):
        await client.release(task, delay=delay)
    with pytest.raises(InvalidTask, match=r"^lease: "):
        await client.heartbeat(task, lease=delay)
    await client.ack(task.id)


async def test_an_error_of_any_length_is_kept_in_part(client: Client) -> None:
    await client.enqueue("t")
    await client.nack(await one(client), "\ud800" + "x" * 100_000)
    (task,) = await client.list()
    assert task.error is not None
    assert len(task.error) == 16 * 1024


async def test_handing_back_costs_no_retry(client: Client, clock: ManualClock) -> None:
    await client.enqueue("t", max_retries=0)
    for attempt in range(1, 4):
        task = await one(client)
        assert (task.attempt, task.failures) == (attempt, 0)
        await client.release(task, delay=2)
        assert await client.dequeue() == []
        clock.advance(2)


async def test_a_heartbeat_extends_the_lease(client: Client, clock: ManualClock) -> None:
    await client.enqueue("t")
    task = await one(client, lease=10)
    clock.advance(9)
    await client.heartbeat(task.id, lease=20)
    assert (await stored(client, task.id)).lease_expires_at == clock.now + 20


async def test_a_late_worker_learns_that_its_lease_is_lost(client: Client, clock: ManualClock) -> None:
    await client.enqueue("t")
    late = await one(client, lease=10)
    clock.advance(11)
    await client.engine.apply([expire(late, random=0.5, grace=0)])
    clock.advance(60)
    newer = await one(client)
    says = f"attempt 1 of task {late.id} has lost its lease: it expired, or the task was cancelled"
    for settle in (client.ack, client.nack, client.release, client.heartbeat):
        with pytest.raises(LeaseLost, match=says):
            await settle(late)
    assert (await stored(client, late.id)) == newer
    await client.ack(newer.id, "mine")  # the late one's failure has not made us forget the newer lease
    assert await client.result(newer.id) == "mine"


async def test_a_cancelled_task_is_lost_to_its_worker(client: Client) -> None:
    await client.enqueue("t")
    task = await one(client)
    await client.cancel(task.id)
    with pytest.raises(LeaseLost):
        await client.heartbeat(task.id)
    with pytest.raises(TaskNotFound):
        await client.ack(task.id)
    with pytest.raises(LeaseLost):
        await client.ack(task)
    assert (await stored(client, task.id)).status is Status.CANCELLED


async def test_a_task_without_a_lease_cannot_be_settled(client: Client) -> None:
    task = await stored(client, (await client.enqueue("t")).id)
    for settle in (client.ack, client.nack, client.release, client.heartbeat):
        with pytest.raises(LeaseLost):
            await settle(task)
    assert await stored(client, task.id) == task


async def test_acknowledging_twice_is_harmless(client: Client) -> None:
    await client.enqueue("t")
    task = await one(client)
    await client.ack(task, 1)
    await client.ack(task, 1)
    assert len(await client.history(task.id)) == 3


async def test_concurrent_consumers_never_share_a_task(client: Client) -> None:
    for _ in range(10):
        await client.enqueue("t")
    taken = await asyncio.gather(*(client.dequeue(batch_size=2) for _ in range(10)))
    ids = [task.id for batch in taken for task in batch]
    assert len(ids) == len(set(ids)) == 10


async def test_a_consumer_takes_from_its_queue(client: Client) -> None:
    await client.enqueue("t", queue="mail")
    await client.enqueue("t", queue="other")
    consumer = await client.consumer("mail")
    (task,) = await consumer.dequeue()
    await consumer.heartbeat(task)
    await consumer.nack(task, delay=0)
    (again,) = await consumer.dequeue(lease=5)
    await consumer.release(again)
    (last,) = await consumer.dequeue()
    await consumer.ack(last.id, "done")
    assert await consumer.dequeue() == []
    with pytest.raises(InvalidTask, match=r"^queue: "):
        await client.consumer("a/b")


async def test_waiting_for_a_task_ends_when_one_comes(client: Client) -> None:
    waiting = asyncio.create_task(client.dequeue(wait=60))
    for _ in range(20):
        await asyncio.sleep(0)
    submitted = await client.enqueue("t")
    (task,) = await asyncio.wait_for(waiting, 20)
    assert task.id == submitted.id


async def test_waiting_without_a_task_times_out_with_nothing(client: Client) -> None:
    assert await client.dequeue(wait=0.01) == []


# --- a cancelled dequeue


class SlowToAnswer(MemoryEngine):
    """Claims at once, answers when told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.claimed, self.answer = asyncio.Event(), asyncio.Event()

    async def claim(self, request: ClaimRequest) -> list[Task]:
        tasks = await super().claim(request)
        self.claimed.set()
        await self.answer.wait()
        return tasks


async def test_a_cancelled_dequeue_hands_back_what_the_store_had_leased(clock: ManualClock) -> None:
    engine = SlowToAnswer(clock)
    client = Client(engine, clock=clock)
    submitted = await client.enqueue("t", max_retries=0)
    dequeuing = asyncio.create_task(client.dequeue())
    await engine.claimed.wait()
    assert (await stored(client, submitted.id)).status is Status.RUNNING
    dequeuing.cancel()
    await asyncio.sleep(0)
    engine.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await dequeuing
    task = await stored(client, submitted.id)
    assert (task.status, task.failures) == (Status.PENDING, 0)


async def test_a_dequeue_cancelled_at_any_moment_leaks_no_lease(client: Client) -> None:
    for moment in range(12):
        submitted = await client.enqueue("t")
        dequeuing = asyncio.create_task(client.dequeue(wait=5))
        for _ in range(moment):
            await asyncio.sleep(0)
        dequeuing.cancel()
        got, *_ = await asyncio.gather(dequeuing, return_exceptions=True)
        if isinstance(got, list):
            await client.release(got[0])
        (task,) = await client.dequeue(wait=5)
        assert task.id == submitted.id
        await client.ack(task)
