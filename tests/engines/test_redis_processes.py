"""Crashed servers and killed workers: nothing acknowledged is lost or finished twice."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qo.client import Client, connect
from qo.model import RetryPolicy, Status
from qo.monitor import Monitor, MonitorSettings
from tests.conditions import TIMEOUT, until
from tests.engines.killing import kills as number_of_kills
from tests.engines.redis_load import all_done, finished_once, under_load
from tests.servers.redis import running

SCRIPT = Path(__file__).with_name("redis_worker.py")
ROOT = SCRIPT.parents[2]
KILLS = number_of_kills(5)
SOON = RetryPolicy(initial=0.1, max=0.5)


async def test_a_server_that_crashes_under_load_loses_nothing_acknowledged() -> None:
    with running("--appendfsync", "always") as server:
        async with connect(server.url) as client:

            async def crashes(acknowledged: list[str]) -> None:
                for _ in range(3):
                    seen = len(acknowledged)
                    await until(lambda seen: len(acknowledged) > seen + 100, seen)
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                seen = len(acknowledged)
                await until(lambda: len(acknowledged) > seen + 50)

            assert len(await under_load(client, crashes)) > 300


@pytest.fixture
def dice() -> random.Random:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    return random.Random(seed)


def start(url: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.Popen([sys.executable, str(SCRIPT), url], env=environment, stderr=subprocess.DEVNULL)


async def test_four_workers_of_which_one_is_killed_repeatedly(dice: random.Random) -> None:
    with running() as server:
        async with connect(server.url) as client:
            workers = [start(server.url) for _ in range(4)]
            monitor = Monitor(client, MonitorSettings(check_interval=0.3, grace=0.2), id="m")
            watching = asyncio.create_task(monitor.run())
            ids: list[str] = []
            try:
                kills, has_hit = 0, False
                while kills < KILLS or not has_hit:
                    kills += 1
                    assert kills < KILLS + 100, "no kill hit a task"
                    victim = workers[dice.randrange(4)]
                    its_id = await until_registered(client, victim.pid)
                    done = (await client.stats())["completed"]
                    batch = [client.new_task("count_up", b'{"n":1}', max_retries=50, retry=SOON) for _ in range(150)]
                    ids += (fresh := [submitted.id for submitted in await client.submit_many(batch)])
                    await until_completed(client, done + dice.randrange(1, 140))
                    victim.send_signal(signal.SIGKILL)
                    assert victim.wait(TIMEOUT) == -signal.SIGKILL, "a worker ended by itself"
                    workers[workers.index(victim)] = start(server.url)
                    left = [task for task in await client.engine.get(fresh) if task and task.status is Status.RUNNING]
                    has_hit = has_hit or its_id in {task.worker_id for task in left}
                await all_done(client, ids)
                await finished_once(client, ids)
                assert any(task.attempt > 1 for task in await client.engine.get(ids) if task)
            finally:
                for process in workers:
                    process.kill()
                    process.wait(TIMEOUT)
                monitor.stop()
                await watching


async def until_registered(client: Client, pid: int) -> str:
    async def registered() -> str | None:
        return next((worker.worker_id for worker in await client.workers() if worker.pid == pid), None)

    return await until(registered)


async def until_completed(client: Client, number: int) -> None:
    async def are_completed() -> bool:
        return bool((await client.stats())["completed"] >= number)

    await until(are_completed)
