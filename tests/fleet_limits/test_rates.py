"""Rates of the fleet: never exceeded in any window, and used as far as the tolerance allows."""

import asyncio
from bisect import bisect_left
from contextlib import AsyncExitStack

import pytest

import qo
from qo.client import Client
from qo.clock import boot_clock
from qo.fleet_limits import known_limit
from qo.fleet_limits.limit_state import LimitState, reserve, spacing, tolerance
from qo.model import Limit, Status, Task
from tests.conditions import until
from tests.worker.bench import Bench


def _task(number: int) -> Task:
    return Task(
        id=f"{number:08x}-0000-8000-8000-000000000000", queue="q", type="t", available_at=0.0, created_at=0.0,
        updated_at=0.0, rank=0.0, attempt=1,
    )  # fmt: skip


def most_in_any_window(starts: list[float], seconds: float) -> int:
    ordered = sorted(starts)
    return max(bisect_left(ordered, start + seconds) - number for number, start in enumerate(ordered))


@pytest.mark.parametrize(
    "limit", [Limit(rate=100), Limit(rate=1, per=60), Limit(rate=7, per=0.5), Limit(rate=5, per=3600)]
)
def test_even_the_latest_starts_keep_to_the_rate_in_every_window(limit: Limit) -> None:
    state, now, starts = LimitState(scope="type:t"), 1000.0, list[float]()
    while len(starts) < 5 * limit.rate + 5:
        wanted = [(_task(n), "", limit) for n in range(3)]
        found = reserve(state, wanted, now=now, horizon=0.25)
        state = found.state
        for at in found.admitted.values():
            starts += [at, at + tolerance(limit)][len(starts) % 2 :][:1]  # some at once, some as late as allowed
        now += spacing(limit) / 2
    assert most_in_any_window(starts, limit.per) <= limit.rate
    assert len(starts) / (max(starts) - min(starts)) >= 0.9 * limit.rate / limit.per


@pytest.mark.parametrize("workers", [2, 4])
async def test_workers_share_a_rate_and_never_exceed_it(bench: Bench, workers: int) -> None:
    starts: list[float] = []

    async def call() -> None:
        starts.append(boot_clock())

    bench.handle(call, limit=qo.Limit(rate=50, per=0.5))
    await asyncio.gather(*(bench.submit("call") for _ in range(400)))
    async with AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(bench.working(concurrency=10))
        await until(lambda: len(starts) >= 200)
    assert most_in_any_window(starts, 0.5) <= 50  # bench/limits.py measures how much of the rate they use


async def test_each_key_has_its_own_rate(bench: Bench) -> None:
    limit = qo.Limit(rate=1, per=3600, key="customer_id")

    async def call(customer_id: int) -> None: ...

    bench.handle(call, limit=limit)
    ids = [await bench.submit("call", {"customer_id": n % 3}, limit=limit) for n in range(9)]
    async with bench.working(concurrency=10):
        for task_id in ids[:3]:
            await bench.ended(task_id)
        statuses = [(await bench.stored(task_id)).status for task_id in ids[3:]]
        assert statuses == [Status.PENDING] * 6


async def test_a_pause_holds_for_tasks_that_wait_for_their_instant(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_limit, "_HORIZON", 5.0)  # it is claimed long before its instant
    started: list[str] = []

    async def call(name: str) -> None:
        started.append(name)

    bench.handle(call, limit=qo.Limit(rate=1, per=2))
    first = await bench.submit("call", {"name": "first"})
    async with bench.working(concurrency=2):
        await bench.ended(first)
        second = await bench.submit("call", {"name": "second"})
        await bench.has_status(second, Status.RUNNING)
        await client.controls.pause(types=["call"])
        assert started == ["first"]
        task = await bench.seen(second, lambda task: task.status is not Status.RUNNING)
        assert (task.status, started) == (Status.PENDING, ["first"])
        await client.controls.resume(types=["call"])
        await bench.ended(second)
