"""Limits of the fleet on running tasks: never more than N of a key, and no slot is lost."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

import qo
from qo.client import Client
from qo.fleet_limits.limit_state import LimitState
from qo.fleet_limits.rules import state_note
from qo.model import ClaimRequest, Status, complete
from qo.notes import read
from qo.worker import Worker, WorkerSettings
from tests.conditions import delay, until
from tests.worker.bench import Bench


class Running:
    """Counts the handlers that run, by key."""

    def __init__(self, seconds: float = 0.005) -> None:
        self.now: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        self.seconds = seconds

    async def __call__(self, customer_id: int) -> None:
        self.now[customer_id] += 1
        self.most[customer_id] = max(self.most[customer_id], self.now[customer_id])
        await delay(self.seconds)
        self.now[customer_id] -= 1


def _charge(running: Running) -> Any:
    async def charge(customer_id: int) -> None:
        await running(customer_id)

    return charge


@pytest.mark.parametrize("workers", [1, 3])
async def test_never_more_than_the_limit_of_a_key_run_in_all_workers(bench: Bench, workers: int) -> None:
    running, limit = Running(), qo.Limit(concurrency=2, key="customer_id")
    bench.handle(_charge(running), limit=limit)
    ids = [await bench.submit("charge", {"customer_id": n % 3}, limit=limit) for n in range(90)]
    async with AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(bench.working(concurrency=10))
        for task_id in ids:
            assert (await bench.ended(task_id)).status is Status.COMPLETED
    assert running.most == {0: 2, 1: 2, 2: 2}


async def test_a_limit_without_a_key_holds_for_the_type(bench: Bench) -> None:
    running, limit = Running(), qo.Limit(concurrency=3)
    bench.handle(_charge(running), limit=limit)
    ids = [await bench.submit("charge", {"customer_id": 1}) for n in range(30)]
    async with bench.working(concurrency=10), bench.working(concurrency=10):
        for task_id in ids:
            await bench.ended(task_id)
    assert running.most == {1: 3}


async def test_a_full_group_does_not_delay_others(bench: Bench) -> None:
    blocked, limit = asyncio.Event(), qo.Limit(concurrency=1, key="customer_id")

    async def charge(customer_id: int) -> None:
        if customer_id == 1:
            await blocked.wait()

    bench.handle(charge, limit=limit)
    full = [await bench.submit("charge", {"customer_id": 1}, limit=limit) for _ in range(20)]
    others = [await bench.submit("charge", {"customer_id": n}, limit=limit) for n in range(2, 12)]
    async with bench.working(concurrency=4):
        for task_id in others:
            await bench.ended(task_id)
        statuses = Counter([(await bench.stored(task_id)).status for task_id in full])
        assert statuses == {Status.RUNNING: 1, Status.PENDING: 19}
        blocked.set()
        for task_id in full:
            await bench.ended(task_id)


async def test_slots_are_free_again_after_the_tasks(bench: Bench, client: Client) -> None:
    limit = qo.Limit(concurrency=2, key="customer_id")
    bench.handle(_charge(Running(0.0)), limit=limit)
    await bench.run_all([await bench.submit("charge", {"customer_id": 1}, limit=limit) for _ in range(5)])

    async def is_free() -> bool:
        return not (await read(client.engine, state_note("type:charge"), LimitState)).holders

    await until(is_free)


async def test_the_slot_of_a_worker_that_died_is_taken_over(bench: Bench, client: Client) -> None:
    """The holder stays in the note until the store says that its attempt is over."""
    limit = qo.Limit(concurrency=1, key="customer_id")
    bench.handle(_charge(Running(0.0)), limit=limit)
    dead = await bench.submit("charge", {"customer_id": 1}, limit=limit)
    request = ClaimRequest(worker_id="dead", lease_id="lease", lease=600.0, takes_groups=True)
    (task,) = await client.engine.claim(request)
    holders = {"customer_id=1": {dead: [task.attempt, "dead", 0.0]}}
    note = msgspec.json.encode({"scope": "type:charge", "holders": holders})
    await client.engine.write_note(state_note("type:charge"), note, expected="new")
    waiting = await bench.submit("charge", {"customer_id": 1}, limit=limit)
    async with bench.working():
        await delay(0.2)
        assert (await bench.stored(waiting)).status is Status.PENDING
        assert await client.engine.apply([complete(task)]) == [True]
        assert (await bench.ended(waiting)).status is Status.COMPLETED


async def test_a_drain_waits_for_tasks_that_claims_cannot_leave_out(bench: Bench, client: Client) -> None:
    """Nobody knows the customer of raw data, so these tasks are claimed, refused and due a second later."""
    gate = asyncio.Event()

    async def charge(customer_id: bytes) -> None:  # noqa: ARG001
        await gate.wait()

    bench.handle_payload(charge, limit=qo.Limit(concurrency=1, key="customer_id"))
    ids = [await bench.submit("charge", b"raw") for _ in range(3)]
    worker = Worker(client, bench.registry, WorkerSettings(concurrency=5, drain=True, poll=0.05))
    running = asyncio.create_task(worker.run())
    await bench.seen(ids[2], lambda task: task.attempt and task.status is Status.PENDING)  # it was refused
    gate.set()
    await asyncio.wait_for(running, 30)
    assert [(await bench.stored(task_id)).status for task_id in ids] == [Status.COMPLETED] * 3
