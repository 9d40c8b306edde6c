"""The metrics of a server about schedules: what any process decided."""

import pytest
from prometheus_client import CollectorRegistry

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.monitor.scheduler import Scheduler
from qo.store_time import StoreTime
from qo.testing import ManualClock
from qo.web.stats.server_metrics import ScheduleMetrics
from tests.conditions import until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_020.0)  # 20 s before a full minute


@pytest.fixture
def client(clock: ManualClock) -> Client:
    return Client(MemoryEngine(clock), clock=clock)


async def test_a_server_counts_what_other_processes_decide_and_begins_at_zero(
    client: Client, clock: ManualClock
) -> None:
    registry = CollectorRegistry()
    shown = ScheduleMetrics(client.engine, clock, registry)
    elsewhere = Scheduler(client, clock=StoreTime(client.engine, clock, clock), elapsed=clock)

    async def fires(outcome: str, number: float) -> bool:
        await shown.refresh()  # a read serves a moment of scrapes
        return registry.get_sample_value("schedule_fires_total", {"outcome": outcome}) == number

    await client.schedules.add("sync", task="sync", every=60)
    await elsewhere.check()
    clock.advance(21)
    await elsewhere.check()
    assert await fires("fired", 0)
    clock.advance(60)
    await elsewhere.check()
    await until(lambda: fires("fired", 1))
    clock.advance(180)
    await elsewhere.check()  # one task for three fire times
    await until(lambda: fires("fired", 2))
    assert registry.get_sample_value("schedule_fires_total", {"outcome": "missed"}) == 2
    assert registry.get_sample_value("schedule_lateness_seconds_count") == 2
    await client.schedules.run("sync")
    await client.schedules.pause("sync")

    async def is_paused() -> bool:
        await shown.refresh()
        return registry.get_sample_value("schedules", {"status": "paused"}) == 1

    await until(is_paused)
    assert registry.get_sample_value("schedule_fires_total", {"outcome": "fired"}) == 2, "a run by hand is no fire time"


async def test_decisions_are_counted_after_the_clock_of_the_store_was_set_back(
    client: Client, clock: ManualClock
) -> None:
    registry = CollectorRegistry()
    shown = ScheduleMetrics(client.engine, clock, registry)
    elapsed = ManualClock()
    elsewhere = Scheduler(client, clock=StoreTime(client.engine, clock, elapsed), elapsed=elapsed)

    async def fired(number: float) -> bool:
        await shown.refresh()
        return registry.get_sample_value("schedule_fires_total", {"outcome": "fired"}) == number

    await client.schedules.add("sync", task="sync", cron="* * * * *")
    await shown.refresh()
    for step, number in ((61, 1), (-7200, 1), (61, 2), (60, 3)):
        clock.advance(step)
        elapsed.advance(abs(step))
        await elsewhere.check()
        await until(fired, number)
