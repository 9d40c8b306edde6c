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
    "ack": (lambda queue, task: queue.ack(task, {"ok": True}), Status.COMPLETED),
    "nack": (lambda queue, task: queue.nack(task, "boom"), Status.PENDING),
    "release": (lambda queue, task: queue.release(task), Status.PENDING),
}


async def one(queue: Client, **options: Any) -> Task:
    (task,) = await queue.dequeue(**options)
    return task


async def stored(queue: Client, task_id: str) -> Task:
    task = await queue.get(task_id)
    assert task is not None
    return task


async def test_dequeue_leases_what_comes_first(queue: Client, clock: ManualClock) -> None:
    await queue.enqueue("t", priority="low")
    urgent = await queue.enqueue("t", priority="high")
    task = await one(queue, lease=timedelta(minutes=1))
    assert (task.id, task.status, task.attempt, task.lease_expires_at) == (urgent.id, Status.RUNNING, 1, clock.now + 60)


async def test_dequeue_takes_only_what_was_asked_for(queue: Client) -> None:
    await queue.enqueue("a", queue="x")
    await queue.enqueue("b", queue="y")
    await queue.enqueue("b", queue="y", needs=["gpu"])
    assert (
        await queue.dequeue("nothing")
        == await queue.dequeue(queue="nowhere")
        == await queue.dequeue("a", queue="y")
        == []
    )
    assert len(await queue.dequeue("b", batch_size=9)) == 1
    assert len(await queue.dequeue(queue="y", batch_size=9, capabilities=["gpu"])) == 1
    assert len(await queue.dequeue(batch_size=9)) == 1


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
    queue: Client, field: str, options: dict[str, Any]
) -> None:
    submitted = await queue.enqueue("t")
    with pytest.raises(InvalidTask, match=f"^{field}: "):
        await queue.dequeue(**options)
    assert (await stored(queue, submitted.id)).attempt == 0


@pytest.mark.parametrize("by_id", [False, True], ids=["by task", "by id"])
@pytest.mark.parametrize("how", SETTLING)
async def test_a_held_task_is_settled(queue: Client, how: str, *, by_id: bool) -> None:
    await queue.enqueue("t")
    task = await one(queue)
    settle, status = SETTLING[how]
    await settle(queue, task.id if by_id else task)
    after = await stored(queue, task.id)
    assert (after.status, after.failures) == (status, int(how == "nack"))
    with pytest.raises(TaskNotFound, match="was not dequeued by this client, or is already settled"):
        await settle(queue, task.id)


async def test_a_result_is_kept_and_one_that_cannot_be_is_refused_while_the_lease_is_held(queue: Client) -> None:
    await queue.enqueue("t")
    task = await one(queue)
    for result in (float("nan"), "x" * 300_000, object()):
        with pytest.raises(InvalidTask, match=r"^result: "):
            await queue.ack(task.id, result)
    await queue.ack(task.id, {"n": 1})
    assert (await stored(queue, task.id)).result == b'{"n":1}'


async def test_a_failed_task_comes_back_after_its_back_off_or_the_delay_asked_for(
    queue: Client, clock: ManualClock
) -> None:
    await queue.enqueue("t", max_retries=1)
    task = await one(queue)
    await queue.nack(task, "boom", delay=timedelta(seconds=7))
    after = await stored(queue, task.id)
    assert (after.available_at, after.error, after.failures) == (clock.now + 7, "boom", 1)
    clock.advance(7)
    await queue.nack(await one(queue), "again")
    assert (await stored(queue, task.id)).status is Status.FAILED


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "5", True])
async def test_a_delay_that_makes_no_sense_is_refused_and_the_lease_kept(queue: Client, delay: Any) -> None:
    await queue.enqueue("t")
    task = await one(queue)
    with pytest.raises(InvalidTask, match=r"^delay: "):
        await queue.nack(task, delay=delay)
    with pytest.raises(InvalidTask, match=r"^delay: "):
        await queue.release(task, delay=delay)
    with pytest.raises(InvalidTask, match=r"^lease: "):
        await queue.heartbeat(task, lease=delay)
    await queue.ack(task.id)


async def test_an_error_of_any_length_is_kept_in_part(queue: Client) -> None:
    await queue.enqueue("t")
    await queue.nack(await one(queue), "\ud800" + "x" * 100_000)
    (task,) = await queue.list()
    assert task.error is not None
    assert len(task.error) == 16 * 1024


async def test_handing_back_costs_no_retry(queue: Client, clock: ManualClock) -> None:
    await queue.enqueue("t", max_retries=0)
    for attempt in range(1, 4):
        task = await one(queue)
        assert (task.attempt, task.failures) == (attempt, 0)
        await queue.release(task, delay=2)
        assert await queue.dequeue() == []
        clock.advance(2)


async def test_a_heartbeat_extends_the_lease(queue: Client, clock: ManualClock) -> None:
    await queue.enqueue("t")
    task = await one(queue, lease=10)
    clock.advance(9)
    await queue.heartbeat(task.id, lease=20)
    assert (await stored(queue, task.id)).lease_expires_at == clock.now + 20


async def test_a_late_worker_learns_that_its_lease_is_lost(queue: Client, clock: ManualClock) -> None:
    await queue.enqueue("t")
    late = await one(queue, lease=10)
    clock.advance(11)
    await queue.engine.apply([expire(late, random=0.5, grace=0)])
    clock.advance(60)
    newer = await one(queue)
    says = f"attempt 1 of task {late.id} has lost its lease: it expired, or the task was cancelled"
    for settle in (queue.ack, queue.nack, queue.release, queue.heartbeat):
        with pytest.raises(LeaseLost, match=says):
            await settle(late)
    assert (await stored(queue, late.id)) == newer
    await queue.ack(newer.id, "mine")  # the late one's failure has not made us forget the newer lease
    assert await queue.result(newer.id) == "mine"


async def test_a_cancelled_task_is_lost_to_its_worker(queue: Client) -> None:
    await queue.enqueue("t")
    task = await one(queue)
    await queue.cancel(task.id)
    with pytest.raises(LeaseLost):
        await queue.heartbeat(task.id)
    with pytest.raises(TaskNotFound):
        await queue.ack(task.id)
    with pytest.raises(LeaseLost):
        await queue.ack(task)
    assert (await stored(queue, task.id)).status is Status.CANCELLED


async def test_a_task_nobody_holds_cannot_be_settled(queue: Client) -> None:
    task = await stored(queue, (await queue.enqueue("t")).id)
    for settle in (queue.ack, queue.nack, queue.release, queue.heartbeat):
        with pytest.raises(LeaseLost):
            await settle(task)
    assert await stored(queue, task.id) == task


async def test_acknowledging_twice_is_harmless(queue: Client) -> None:
    await queue.enqueue("t")
    task = await one(queue)
    await queue.ack(task, 1)
    await queue.ack(task, 1)
    assert len(await queue.history(task.id)) == 3


async def test_concurrent_consumers_never_share_a_task(queue: Client) -> None:
    for _ in range(10):
        await queue.enqueue("t")
    taken = await asyncio.gather(*(queue.dequeue(batch_size=2) for _ in range(10)))
    ids = [task.id for batch in taken for task in batch]
    assert len(ids) == len(set(ids)) == 10


async def test_a_consumer_takes_from_its_queue(queue: Client) -> None:
    await queue.enqueue("t", queue="mail")
    await queue.enqueue("t", queue="other")
    consumer = await queue.consumer("mail")
    (task,) = await consumer.dequeue()
    await consumer.heartbeat(task)
    await consumer.nack(task, delay=0)
    (again,) = await consumer.dequeue(lease=5)
    await consumer.release(again)
    (last,) = await consumer.dequeue()
    await consumer.ack(last.id, "done")
    assert await consumer.dequeue() == []
    with pytest.raises(InvalidTask, match=r"^queue: "):
        await queue.consumer("a/b")


async def test_waiting_for_a_task_ends_when_one_comes(queue: Client) -> None:
    waiting = asyncio.create_task(queue.dequeue(wait=60))
    for _ in range(20):
        await asyncio.sleep(0)
    submitted = await queue.enqueue("t")
    (task,) = await asyncio.wait_for(waiting, 20)
    assert task.id == submitted.id


async def test_waiting_in_vain_ends_with_nothing(queue: Client) -> None:
    assert await queue.dequeue(wait=0.01) == []


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
    queue = Client(engine, clock=clock)
    submitted = await queue.enqueue("t", max_retries=0)
    dequeuing = asyncio.create_task(queue.dequeue())
    await engine.claimed.wait()
    assert (await stored(queue, submitted.id)).status is Status.RUNNING
    dequeuing.cancel()
    await asyncio.sleep(0)
    engine.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await dequeuing
    task = await stored(queue, submitted.id)
    assert (task.status, task.failures) == (Status.PENDING, 0)


async def test_a_dequeue_cancelled_at_any_moment_leaks_no_lease(queue: Client) -> None:
    for moment in range(12):
        submitted = await queue.enqueue("t")
        dequeuing = asyncio.create_task(queue.dequeue(wait=5))
        for _ in range(moment):
            await asyncio.sleep(0)
        dequeuing.cancel()
        got, *_ = await asyncio.gather(dequeuing, return_exceptions=True)
        if isinstance(got, list):
            await queue.release(got[0])
        (task,) = await queue.dequeue(wait=5)
        assert task.id == submitted.id
        await queue.ack(task)
