"""What a worker with nothing to do asks of a store that bills every request."""

import asyncio
from collections import Counter
from typing import Self

import pytest

from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.client import Client
from qo.clock import system_clock
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.one_object import OneObjectEngine
from qo.engines.replicated_log import ReplicatedLogEngine
from qo.model import ClaimRequest, Status, Task
from qo.monitor import Monitor
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Worker, WorkerSettings
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import pass_time, run

LAYOUTS = {"tasks": ObjectPerTaskEngine, "one": OneObjectEngine, "log": ReplicatedLogEngine}
QUIET, COUNTED = 90.0, 1200.0  # seconds until a queue is taken to be quiet, and over which requests are counted
MOST = 0.25  # requests a second
TIMEOUT = 15.0  # seconds until an idle worker must have found a task


START = system_clock()


def now() -> float:
    return START + asyncio.get_running_loop().time()


async def hello() -> str:
    return "hello"


class Idle:
    """A worker, a monitor if it has one, and a bucket as far away as a cloud, in a time that jumps."""

    def __init__(self, layout: str, settings: WorkerSettings | None = None, *, watched: bool) -> None:
        self.bucket = CountingBucket(SlowBucket(MemoryBucket(now)))
        self.client = Client(LAYOUTS[layout](self.bucket), clock=now)
        registry = Registry()
        registry.add(make_handler(hello, type="hello", options=make_options(hello)))
        self.worker = Worker(self.client, registry, settings or WorkerSettings(), clock=now, wall_clock=now)
        self.monitor = Monitor(self.client, id="m", clock=now) if watched else None

    async def __aenter__(self) -> Self:
        await self.client.open()
        self.running = [asyncio.create_task(each.run()) for each in (self.worker, self.monitor) if each is not None]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.worker.stop()
        if self.monitor is not None:
            self.monitor.stop()
        await asyncio.gather(*self.running)
        await self.client.close()


async def is_found(client: Client, task_id: str) -> None:
    """Wait until a worker has claimed the task."""
    async with asyncio.timeout(TIMEOUT):
        while (task := await client.get(task_id)) and not task.attempt:
            await pass_time(1)


@pytest.mark.parametrize("watched", [True, False], ids=["with a monitor", "alone"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_idle_worker_asks_once_in_four_seconds(layout: str, *, watched: bool) -> None:
    async def idle() -> Counter[str]:
        async with Idle(layout, watched=watched) as it:
            await pass_time(QUIET)
            it.bucket.requests.clear()
            await pass_time(COUNTED)
            return +it.bucket.requests

    requests = run(idle())
    assert requests.total() <= MOST * COUNTED, requests


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_idle_worker_reads_the_controls_before_it_claims(layout: str) -> None:
    async def idle() -> None:
        async with Idle(layout, watched=False) as it:
            await pass_time(QUIET)
            other = Client(LAYOUTS[layout](it.bucket), clock=now)
            await other.controls.pause()
            submitted = await other.enqueue("hello")
            await pass_time(QUIET)
            task = await other.get(submitted.id)
            assert task is not None
            assert (task.status, task.attempt) == (Status.PENDING, 0)
            await other.controls.resume()
            await is_found(other, submitted.id)
            await other.close()

    run(idle())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_after_a_quiet_time_a_task_is_found_within_seconds(layout: str) -> None:
    async def idle() -> None:
        async with Idle(layout, watched=False) as it:
            await pass_time(QUIET)
            other = Client(LAYOUTS[layout](it.bucket), clock=now)
            submitted = await other.enqueue("hello")
            await is_found(other, submitted.id)
            await other.close()

    run(idle())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_worker_told_to_stop_during_a_claim_does_not_wait_for_a_task(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stops() -> float:
        async with Idle(layout, watched=False) as it:
            await pass_time(QUIET)
            claim, claimed = it.client.engine.claim, asyncio.Event()

            async def stop_and_claim(request: ClaimRequest) -> list[Task]:
                it.worker.stop()
                claimed.set()
                return await claim(request)

            monkeypatch.setattr(it.client.engine, "claim", stop_and_claim)
            await claimed.wait()
            began = now()
        return now() - began

    assert run(stops()) < 1


@pytest.mark.parametrize("poll", [None, 60.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_drain_that_fails_unknown_types_does_not_idle_between_its_checks(layout: str, poll: float | None) -> None:
    async def drain() -> float:
        settings = WorkerSettings(drain=True, poll=poll, fail_unknown_types=0.0)
        it = Idle(layout, settings, watched=False)
        submitted = await it.client.enqueue("typo")
        began = now()
        async with it:
            await it.running[0]
            took = now() - began
            task = await it.client.get(submitted.id)
        assert task is not None
        assert task.status is Status.FAILED
        return took

    assert run(drain()) < TIMEOUT
