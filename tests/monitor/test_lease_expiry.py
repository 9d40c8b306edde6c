"""Leases under steps of the store's clock, and beside values that cannot be read."""

import asyncio

from qo.bucket import Blob
from qo.buckets.memory import MemoryBucket
from qo.client import Client
from qo.engines.large_values import LargeValuesEngine
from qo.engines.memory import MemoryEngine
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.errors import StorageError
from qo.model import renew
from qo.stats import StatsRecorder
from qo.sweep import LeaseExpiry
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, new
from qo.transitions import Transitions


def expiry(engine: MemoryEngine | LargeValuesEngine, elapsed: ManualClock) -> LeaseExpiry:
    transitions = Transitions(StatsRecorder(engine, clock=elapsed), clock=elapsed)
    return LeaseExpiry(engine, transitions, elapsed, checks_ahead=True)


def test_a_clock_that_is_set_back_twice_and_then_ahead_takes_no_task_from_a_living_worker() -> None:
    """After a step back the clock passes through instants of before the step again."""

    async def lost() -> int:
        store, elapsed = ManualClock(), ManualClock()
        engine = MemoryEngine(store)
        await engine.add([new()])
        task = await claim_one(engine, lease=60.0)
        sweep, lost = expiry(engine, elapsed), 0
        for step in (0.0, -3600.0, -600.0, 1800.0):
            store.advance(step)
            lost += len(await sweep.expire())  # before the worker's next renewal
            for _ in range(6):
                store.advance(20)
                elapsed.advance(20)
                assert await engine.apply([renew(task, 60.0)]) == [True]
                lost += len(await sweep.expire())
        return lost

    assert asyncio.run(lost()) == 0


def test_a_lease_written_after_a_clock_was_right_again_expires() -> None:
    async def expired() -> int:
        store, elapsed = ManualClock(), ManualClock()
        engine = MemoryEngine(store)
        sweep, year = expiry(engine, elapsed), 365 * 86_400.0
        for step in (0.0, year, -year - 120.0):
            store.advance(step)
            await sweep.expire()
        await engine.add([new()])
        await claim_one(engine, lease=60.0)
        store.advance(300)
        elapsed.advance(300)
        return len(await sweep.expire())

    assert asyncio.run(expired()) == 1


class OneRefused(MemoryBucket):
    """Refuses to read one of its large values, as a store does whose object is archived."""

    refused = ""

    async def get(self, key: str) -> Blob | None:
        if key == self.refused:
            raise StorageError("403 InvalidObjectState")
        return await super().get(key)


def test_a_payload_that_cannot_be_read_keeps_no_lease_from_expiring() -> None:
    async def expired() -> int:
        clock = ManualClock()
        bucket = OneRefused(clock)
        engine = LargeValuesEngine(ObjectPerTaskEngine(bucket, clock=clock), bucket, clock=clock)
        await engine.add([new(n, payload=b'"' + b"x" * 400_000 + b'"') for n in range(3)])
        assert len(await claim(engine, lease=30.0)) == 3
        bucket.refused = min([key async for key in bucket.keys("data/")])
        clock.advance(300)
        return len(await expiry(engine, clock).expire())

    assert asyncio.run(expired()) == 3


def test_a_client_recovers_a_lease_from_before_the_machine_started_with_its_clock_set_back() -> None:
    async def recovered() -> int:
        store, elapsed = ManualClock(), ManualClock()
        engine = MemoryEngine(store)
        await engine.add([new()])
        await claim_one(engine, lease=60.0)
        store.advance(-86_400.0)
        client = Client(engine, clock=elapsed)
        found = 0
        for _ in range(8):
            found += await client.requeue_stale()
            store.advance(60)
            elapsed.advance(60)
        return found

    assert asyncio.run(recovered()) == 1
