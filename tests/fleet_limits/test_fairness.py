"""Turns between groups: a tenant with many tasks does not delay the others."""

import asyncio

import pytest

from qo.fleet_limits.fair_turns import FairTurns
from qo.testing import ManualClock
from tests.conditions import delay, until
from tests.worker.bench import Bench


async def _backlog(bench: Bench, tasks: int) -> None:
    """One tenant has `tasks` waiting tasks, and nine others 10 each, submitted later."""
    for at in range(0, tasks, 1000):
        await asyncio.gather(
            *(bench.submit("send", {"tenant": 0}, fair_by="tenant") for _ in range(at, min(at + 1000, tasks)))
        )
    await asyncio.gather(*(bench.submit("send", {"tenant": 1 + n % 9}, fair_by="tenant") for n in range(90)))


@pytest.mark.parametrize("concurrency", [4, 10, 100])
async def test_small_tenants_are_served_before_most_tasks_of_a_large_one(bench: Bench, concurrency: int) -> None:
    order: list[int] = []

    async def send(tenant: int) -> None:
        order.append(tenant)
        await delay(0.001)

    bench.handle(send, fair_by="tenant")
    await _backlog(bench, 1000)
    async with bench.working(concurrency=concurrency):
        await until(lambda: _has(order, 1090))
    assert max(number for number, tenant in enumerate(order) if tenant) < 200


async def _has(order: list[int], number: int) -> bool:
    return len(order) >= number


async def test_a_tenant_that_is_alone_gets_the_whole_worker(bench: Bench) -> None:
    most = 0
    running = 0
    enough = asyncio.Event()

    async def send(tenant: int) -> None:
        nonlocal most, running
        running += tenant
        most = max(most, running)
        if most == 8:
            enough.set()
        await enough.wait()
        running -= tenant

    bench.handle(send, fair_by="tenant")
    await asyncio.gather(*(bench.submit("send", {"tenant": 1}, fair_by="tenant") for _ in range(20)))
    async with bench.working(concurrency=8):
        await asyncio.wait_for(enough.wait(), 20)


def test_the_share_of_a_group_grows_while_claims_are_not_full_and_shrinks_while_they_are() -> None:
    clock = ManualClock()
    turns = FairTurns(clock)
    assert turns.limits(10) == ({}, {})
    assert not turns.claimed(0, 10)
    turns.types = frozenset({"send"})
    assert turns.limits(10) == ({"send": 1}, {})
    assert not turns.claimed(0, 10)  # there is nothing: do not claim again
