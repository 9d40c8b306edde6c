"""Load for the Redis tests, and its check: nothing acknowledged is lost or finished twice."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from qo.client import Client
from qo.errors import StorageError
from qo.model import Status
from qo.monitor import Monitor, MonitorSettings
from qo.worker import Worker, WorkerSettings
from tests.conditions import delay
from tests.engines.redis_worker import registry

DEADLINE = 45.0  # seconds until everything acknowledged must be completed


@asynccontextmanager
async def at_work(client: Client) -> AsyncIterator[Worker]:
    worker = Worker(client, registry(), WorkerSettings(lease=1.5, heartbeat=0.5, poll=0.5))
    monitor = Monitor(client, MonitorSettings(check_interval=0.3, grace=0.2), id="m")
    tasks = [asyncio.create_task(worker.run()), asyncio.create_task(monitor.run())]
    try:
        yield worker
    finally:
        worker.stop()
        monitor.stop()
        await asyncio.gather(*tasks)


async def produce(client: Client, acknowledged: list[str], stop: asyncio.Event) -> None:
    """Submit tasks one by one. A submit that raised may have been stored, and is not counted."""
    n = 0
    while not stop.is_set():
        n += 1
        try:
            acknowledged.append((await client.enqueue("count_up", {"n": n})).id)
        except StorageError:
            await delay(0.02)  # as a caller would


async def all_done(client: Client, ids: list[str]) -> None:
    until = time.monotonic() + DEADLINE
    left = list(ids)
    while left:
        tasks = [task for at in range(0, len(left), 500) for task in await client.engine.get(left[at : at + 500])]
        assert None not in tasks, "an acknowledged task is lost"
        left = [task.id for task in tasks if task and task.status is not Status.COMPLETED]
        assert time.monotonic() < until, f"{len(left)} of {len(ids)} are not done"
        await delay(0.05)


async def finished_once(client: Client, ids: list[str]) -> None:
    histories = await asyncio.gather(*(client.engine.history(task_id) for task_id in ids))
    for events in histories:
        assert [event.status for event in events].count(Status.COMPLETED) == 1, events
        claims = [event.attempt for event in events if event.status is Status.RUNNING]
        assert claims == list(range(1, len(claims) + 1))


async def under_load(client: Client, trouble: Callable[[list[str]], Awaitable[None]]) -> list[str]:
    """The ids that were acknowledged while a worker and a producer ran and `trouble` caused failures."""
    acknowledged: list[str] = []
    stop = asyncio.Event()
    async with at_work(client):
        producing = [asyncio.create_task(produce(client, acknowledged, stop)) for _ in range(4)]
        await trouble(acknowledged)
        stop.set()
        await asyncio.gather(*producing)
        await all_done(client, acknowledged)
    await finished_once(client, acknowledged)
    return acknowledged
