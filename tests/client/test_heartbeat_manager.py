"""HeartbeatManager renews a lease while its block runs."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from qo.client import Client, HeartbeatManager
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.model import Change, Task
from qo.testing import ManualClock
from tests.client.test_dequeue import one, stored
from tests.conditions import until


class Counting(MemoryEngine):
    """Counts renewals, fails some of them, and tells when one has been asked for."""

    def __init__(self, clock: ManualClock, failing: int = 0) -> None:
        super().__init__(clock)
        self.failing, self.asked = failing, 0
        self.beat: asyncio.Condition = asyncio.Condition()

    async def apply(self, changes: Any) -> list[bool]:
        try:
            if any(self._is_renewal(change) for change in changes) and self.asked < self.failing:
                raise StorageError("the store is unreachable")
            return await super().apply(changes)
        finally:
            async with self.beat:
                self.asked += sum(self._is_renewal(change) for change in changes)
                self.beat.notify_all()

    async def asked_for(self, times: int) -> None:
        async with self.beat:
            await asyncio.wait_for(self.beat.wait_for(lambda: self.asked >= times), 20)

    @staticmethod
    def _is_renewal(change: Change) -> bool:
        return change.lease is not None


async def beating(clock: ManualClock, failing: int = 0) -> tuple[Counting, Client, Task]:
    engine = Counting(clock, failing)
    client = Client(engine, clock=clock)
    await client.enqueue("t")
    return engine, client, await one(client, lease=10)


async def test_a_heartbeat_manager_keeps_the_lease_alive(clock: ManualClock) -> None:
    engine, client, task = await beating(clock)
    before = asyncio.all_tasks()
    async with HeartbeatManager(client, task, interval=timedelta(milliseconds=1)) as heart:
        clock.advance(9)
        await engine.asked_for(3)
        assert not heart.lost
    lease = (await stored(client, task.id)).lease_expires_at
    assert lease is not None
    assert lease >= clock.now + 10
    await until(lambda: asyncio.all_tasks() <= before)  # no heartbeat follows
    await client.ack(task)


async def test_a_heartbeat_manager_reports_a_lost_lease(clock: ManualClock) -> None:
    engine, client, task = await beating(clock)
    async with HeartbeatManager(client, task.id, interval=0.001) as heart:
        await client.cancel(task.id)
        beats = engine.asked
        await engine.asked_for(beats + 1)
        while not heart.lost:
            await asyncio.sleep(0)
    assert heart.lost


async def test_a_heartbeat_manager_survives_a_store_that_was_away(clock: ManualClock) -> None:
    engine, client, task = await beating(clock, failing=3)
    async with HeartbeatManager(client, task, interval=0.001) as heart:
        await engine.asked_for(5)
        assert not heart.lost
    assert (await stored(client, task.id)).lease_expires_at == clock.now + 10


async def test_what_goes_wrong_inside_the_block_comes_out_of_it(clock: ManualClock) -> None:
    _, client, task = await beating(clock)
    with pytest.raises(ZeroDivisionError):
        async with HeartbeatManager(client, task, interval=0.001):
            raise ZeroDivisionError
