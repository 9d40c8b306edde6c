"""Workers that are killed with -9: never more than the limit of a key run, and no slot is lost."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from qo.client import Client, connect
from qo.ids import new_id
from qo.model import FINISHED, Filter, NewTask, Status, with_group
from qo.monitor import Monitor, MonitorSettings
from tests.conditions import delay, until
from tests.fleet_limits.limited_worker import LIMIT, write_line
from tests.servers.process import ROOT

KILLS = int(os.environ.get("QO_KILLS", "4"))
_TASKS, _CUSTOMERS, _WORKERS = 60 + 20 * KILLS, 3, 3


def start(url: str, path: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.fleet_limits.limited_worker", url, str(path)]
    return subprocess.Popen(command, cwd=ROOT, env=environment)


async def submit(client: Client) -> list[str]:
    tasks = [
        NewTask(
            id=new_id(),
            queue="default",
            type="charge",
            payload=b'{"customer_id":%d,"number":%d}' % (n % _CUSTOMERS, n),
            needs=with_group((), f"customer_id={n % _CUSTOMERS}"),
            max_retries=100,
        )
        for n in range(_TASKS)
    ]
    await client.engine.add(tasks)
    return [task.id for task in tasks]


async def watch(client: Client) -> None:
    """The started tasks in the store are never more than the limit."""
    while True:
        running = await client.engine.find(Filter(statuses=(Status.RUNNING,)), limit=1000)
        started = Counter(task.group for task in running if task.started_at is not None)
        assert all(number <= LIMIT.concurrency for number in started.values()), started
        await delay(0.02)


def most_at_once(lines: list[str]) -> Counter[str]:
    """The handlers that ran at once, by customer. Those of a killed process ended when it was killed."""
    now: dict[str, set[str]] = {}
    most: Counter[str] = Counter()
    for line in lines:
        verb, *words = line.split()
        if verb == "killed":
            for runs in now.values():
                runs -= {run for run in runs if run.startswith(f"{words[0]}-")}
            continue
        customer, run = words
        runs = now.setdefault(customer, set())
        (runs.add if verb == "start" else runs.discard)(run)
        most[customer] = max(most[customer], len(runs))
    return most


@pytest.mark.timeout(280)
async def test_killed_workers_never_let_more_than_the_limit_run(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/queue.db", tmp_path / "runs.txt"
    dice = random.Random(7)
    async with connect(url) as client:
        ids = await submit(client)
        monitor = Monitor(client, MonitorSettings(check_interval=0.3, grace=0.2), id="m")
        background = [asyncio.create_task(monitor.run()), asyncio.create_task(watch(client))]
        workers = [start(url, path) for _ in range(_WORKERS)]
        try:
            for _ in range(KILLS):
                await until(_has_grown, path, path.stat().st_size if path.exists() else 0)
                await delay(dice.uniform(0.0, 0.2))
                doomed = workers.pop(0)
                doomed.kill()
                doomed.wait(60)
                write_line(str(path), "killed", doomed.pid)
                workers.append(start(url, path))
            await until(lambda: _all_done(client, ids, background))
        finally:
            for worker in workers:
                worker.kill()
                worker.wait(60)
            for each in background:
                each.cancel()
        for each in background:
            with contextlib.suppress(asyncio.CancelledError):
                await each
    most = most_at_once(path.read_text().splitlines())
    assert most == {str(n): LIMIT.concurrency for n in range(_CUSTOMERS)}


def _has_grown(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


async def _all_done(client: Client, ids: list[str], background: list[asyncio.Task[None]]) -> bool:
    for each in background:
        if each.done():
            each.result()
    tasks = await client.engine.get_without_values(ids)
    return all(task is not None and task.status in FINISHED for task in tasks)
