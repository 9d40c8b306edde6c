"""Servers that crash and fail over, workers that are killed: nothing acknowledged is lost or finished twice."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from qo.errors import StorageError
from qo.model import RetryPolicy, Status
from qo.monitor import Monitor, MonitorSettings
from qo.queue import Queue, connect
from qo.worker import Worker, WorkerSettings
from tests.engines.redis_worker import registry
from tests.servers.redis import Sentinels, program, running

SCRIPT = Path(__file__).with_name("redis_worker.py")
ROOT = SCRIPT.parents[2]
KILLS = int(os.environ.get("QO_KILLS", "8"))
SOON = RetryPolicy(initial=0.1, max=0.5)
PATIENCE = 45.0  # seconds until everything acknowledged must be done


@asynccontextmanager
async def at_work(queue: Queue) -> AsyncIterator[Worker]:
    worker = Worker(queue, registry(), WorkerSettings(lease=3.0, heartbeat=1.0, poll=0.5))
    monitor = Monitor(queue, MonitorSettings(check_interval=0.5, grace=0.5), id="m")
    tasks = [asyncio.create_task(worker.run()), asyncio.create_task(monitor.run())]
    try:
        yield worker
    finally:
        worker.stop()
        monitor.stop()
        await asyncio.gather(*tasks)


async def produce(queue: Queue, acknowledged: list[str], stop: asyncio.Event) -> None:
    """Submit one after the other; what raised may or may not have landed and is not counted."""
    n = 0
    while not stop.is_set():
        n += 1
        try:
            acknowledged.append((await queue.enqueue("count_up", {"n": n})).id)
        except StorageError:
            await asyncio.sleep(0.02)


async def all_done(queue: Queue, ids: list[str]) -> None:
    until = time.monotonic() + PATIENCE
    left = list(ids)
    while left:
        tasks = [task for at in range(0, len(left), 500) for task in await queue.engine.get(left[at : at + 500])]
        assert None not in tasks, "an acknowledged task is lost"
        left = [task.id for task in tasks if task and task.status is not Status.COMPLETED]
        assert time.monotonic() < until, f"{len(left)} of {len(ids)} are not done"
        await asyncio.sleep(0.05)


async def finished_once(queue: Queue, ids: list[str]) -> None:
    for task_id in ids:
        events = await queue.engine.history(task_id)
        assert [event.status for event in events].count(Status.COMPLETED) == 1, events
        claims = [event.attempt for event in events if event.status is Status.RUNNING]
        assert claims == list(range(1, len(claims) + 1))


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def under_load(queue: Queue, trouble: Callable[[list[str]], Awaitable[None]]) -> list[str]:
    """What was acknowledged while a worker worked, a producer produced and trouble took its course."""
    acknowledged: list[str] = []
    stop = asyncio.Event()
    async with at_work(queue):
        producing = [asyncio.create_task(produce(queue, acknowledged, stop)) for _ in range(4)]
        await trouble(acknowledged)
        stop.set()
        await asyncio.gather(*producing)
        await all_done(queue, acknowledged)
    await finished_once(queue, acknowledged)
    return acknowledged


async def test_a_server_that_crashes_under_load_loses_nothing_acknowledged() -> None:
    with running("--appendfsync", "always") as server:
        async with connect(server.url) as queue:

            async def crashes(acknowledged: list[str]) -> None:
                for _ in range(3):
                    seen = len(acknowledged)
                    await until(lambda seen=seen: len(acknowledged) > seen + 100)  # type: ignore[misc]
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                seen = len(acknowledged)
                await until(lambda: len(acknowledged) > seen + 50)

            assert len(await under_load(queue, crashes)) > 300


async def test_a_failover_loses_nothing_acknowledged_and_workers_go_on() -> None:
    with tempfile.TemporaryDirectory(prefix="qo-sentinel-") as folder:
        fleet = Sentinels(program(), Path(folder))
        fleet.start()
        try:
            async with connect(fleet.url) as queue:
                await until_writable(queue)
                assert len(await under_load(queue, lambda acknowledged: failover(fleet, queue, acknowledged))) > 200
        finally:
            fleet.stop()


async def failover(fleet: Sentinels, queue: Queue, acknowledged: list[str]) -> None:
    """The primary dies and a replica takes over; then the last replica dies too, and comes back."""
    await until(lambda: len(acknowledged) > 100)
    await asyncio.to_thread(fleet.primary.kill)
    seen = len(acknowledged)
    await until(lambda: len(acknowledged) > seen + 50)
    new_primary, replica = sorted(fleet.replicas, key=lambda server: not server.is_primary())
    assert new_primary.is_primary() and not replica.is_primary()
    await asyncio.to_thread(replica.kill)
    with pytest.raises(StorageError, match="too few replicas"):
        await write_until_refused(queue)
    await asyncio.to_thread(replica.start)
    seen = len(acknowledged)
    await until(lambda: len(acknowledged) > seen + 50)


async def write_until_refused(queue: Queue) -> None:
    for _ in range(1000):
        await queue.engine.write_note("probe", b"", expected="any")


async def until_writable(queue: Queue) -> None:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(StorageError):
                await queue.engine.write_note("probe", b"", expected="any")
                return
            await asyncio.sleep(0.05)


@pytest.fixture
def dice() -> random.Random:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    return random.Random(seed)


def start(url: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.Popen([sys.executable, str(SCRIPT), url], env=environment, stderr=subprocess.DEVNULL)


async def test_four_workers_of_which_one_is_killed_again_and_again(dice: random.Random) -> None:
    with running() as server:
        async with connect(server.url) as queue:
            workers = [start(server.url) for _ in range(4)]
            monitor = Monitor(queue, MonitorSettings(check_interval=0.3, grace=0.2), id="m")
            watching = asyncio.create_task(monitor.run())
            ids: list[str] = []
            try:
                for _ in range(KILLS):
                    victim = workers[dice.randrange(4)]
                    await until_registered(queue, victim.pid)
                    done = (await queue.stats())["completed"]
                    batch = [queue.new_task("count_up", b'{"n":1}', max_retries=50, retry=SOON) for _ in range(150)]
                    ids += [submitted.id for submitted in await queue.submit_many(batch)]
                    await until_completed(queue, done + dice.randrange(1, 140))
                    victim.send_signal(signal.SIGKILL)
                    assert victim.wait(10) == -signal.SIGKILL, "a worker ended by itself"
                    workers[workers.index(victim)] = start(server.url)
                await all_done(queue, ids)
                await finished_once(queue, ids)
                assert any(task.attempt > 1 for task in await queue.engine.get(ids) if task), "no kill hit a task"
            finally:
                for process in workers:
                    process.kill()
                    process.wait(10)
                monitor.stop()
                await watching


async def until_registered(queue: Queue, pid: int) -> None:
    async with asyncio.timeout(30):
        while pid not in {worker.pid for worker in await queue.workers()}:
            await asyncio.sleep(0.005)


async def until_completed(queue: Queue, number: int) -> None:
    async with asyncio.timeout(30):
        while (await queue.stats())["completed"] < number:
            await asyncio.sleep(0.002)
