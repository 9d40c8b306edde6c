"""Real processes on one database: starting together, killed at random, and a server that restarts under them.

Run as a program, this file is one such process: it adds, claims and completes in a loop, and logs what was
acknowledged, with one write(2) a line, so that what stands in the log survives the process.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qo.engines import examine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.errors import StorageError
from qo.ids import new_id, new_lease_id
from qo.model import NewTask, Status, Want, complete, release
from qo.monitor import Monitor, MonitorSettings
from qo.queue import Queue
from qo.tasks import Registry, make_handler, make_options
from qo.testing.samples import want
from qo.worker import Worker, WorkerSettings

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("QO_KILLS", "6"))
RESTARTS = 2
ENDLESS = 10**9

if __name__ != "__main__":
    from tests.servers.postgres import postgres_server, server, url

    __all__ = ["server", "url"]  # fixtures


async def work(url: str, log: int, rounds: int) -> None:
    engine = PostgresEngine(address_of(url))
    await engine.open()
    os.write(log, b"opened\n")
    for n in range(rounds):
        added = await engine.add([NewTask(id=new_id(), queue="q", type="t") for _ in range(3)])
        os.write(log, b"".join(b"added %s\n" % task_id.encode() for task_id, _ in added))
        tasks = await engine.claim(Want(worker_id="w", lease_id=new_lease_id(), limit=3))
        changes = [release(task) if (n + m) % 7 == 0 else complete(task) for m, task in enumerate(tasks)]
        answers = zip(tasks, changes, await engine.apply(changes), strict=True)
        done = [task for task, change, held in answers if held and change.to is Status.COMPLETED]
        os.write(log, b"".join(b"completed %s %d\n" % (task.id.encode(), task.attempt) for task in done))
    await engine.close()


def start(url: str, log: Path, rounds: int = ENDLESS) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen([sys.executable, __file__, url, str(log), str(rounds)], env=environment)


def until_open(log: Path, process: subprocess.Popen[bytes]) -> None:
    while not (log.exists() and log.stat().st_size):
        assert process.poll() is None, "a worker ended by itself"
        time.sleep(0.005)


async def test_nothing_acknowledged_is_lost_when_processes_are_killed(url: str, tmp_path: Path) -> None:
    """Four processes at work; again and again one is killed at a random moment and another takes its place."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - to repeat it
    dice = random.Random(seed)
    logs = [tmp_path / f"{n}.log" for n in range(KILLS + 4)]
    workers = [(start(url, log), log) for log in logs[:4]]
    for process, log in workers:
        until_open(log, process)
    for log in logs[4:]:
        workers.append((start(url, log), log))  # it starts up while the others work
        await asyncio.sleep(dice.uniform(0.0, 0.06))
        victim, its_log = workers.pop(dice.randrange(4))
        until_open(its_log, victim)
        victim.send_signal(signal.SIGKILL)
        assert victim.wait(10) == -signal.SIGKILL, "a worker ended by itself"
    for process, log in workers:
        until_open(log, process)
        process.kill()
        process.wait(10)
    check(url, logs)
    assert [finding for finding in await examine(url) if finding.ok is False] == []


def check(url: str, logs: list[Path]) -> None:
    with psycopg.connect(url.partition("?")[0]) as db:
        stored: dict[str, str] = dict(db.execute("SELECT id::text, status FROM test.tasks").fetchall())
        told = db.execute(
            "SELECT id::text, status, attempt FROM (SELECT * FROM test.events UNION ALL"
            " SELECT trail.* FROM test.tasks AS t, test.trail(t) AS trail) AS events ORDER BY id, version"
        ).fetchall()
    events = defaultdict[str, list[tuple[str, int]]](list)
    for task_id, status, attempt in told:
        events[task_id].append((status, attempt))
    lines = [line.split() for log in logs for line in log.read_text().splitlines()]
    added = [line[1] for line in lines if line[0] == "added"]
    completed = [(line[1], int(line[2])) for line in lines if line[0] == "completed"]
    assert len(added) > 100 and len(completed) > 50, (len(added), len(completed))
    assert not set(added) - stored.keys(), "an acknowledged task is lost"
    assert not [line for line in completed if stored[line[0]] != "completed"], "an acknowledged completion is lost"
    assert len(completed) == len({task_id for task_id, _ in completed}), "a task was completed twice"
    for history in events.values():
        claims = [attempt for status, attempt in history if status == "running"]
        assert claims == list(range(1, len(claims) + 1)), history
        assert sum(status == "completed" for status, _ in history) <= 1, history


def test_many_processes_may_create_the_schema_at_once(url: str, tmp_path: Path) -> None:
    logs = [tmp_path / f"{n}.log" for n in range(5)]
    processes = [start(url, log, rounds=2) for log in logs]
    assert [process.wait(60) for process in processes] == [0] * 5
    with psycopg.connect(url.partition("?")[0]) as db:
        assert db.execute("SELECT count(*) FROM test.tasks").fetchone() == (5 * 2 * 3,)
        assert db.execute("SELECT count(*) FROM test.lanes").fetchone() == (1,)


async def test_news_from_another_process_ends_the_waiting(url: str, tmp_path: Path) -> None:
    engine = PostgresEngine(address_of(url))
    await engine.open()
    looks, asked = 0, want(limit=1)
    process = start(url, tmp_path / "log", rounds=40)
    async with asyncio.timeout(30):
        while not await engine.claim(asked):
            looks += 1
            await engine.wait(asked, 60)
    assert looks <= 6  # it listened; it did not look again and again
    assert await asyncio.to_thread(process.wait, 30) == 0
    await engine.close()


# --- a server that restarts


async def echo(n: int) -> int:
    return n


class Load:
    """A producer that goes on whatever happens, and remembers what was acknowledged."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.acknowledged = queue, list[str]()
        self.going = True

    async def run(self) -> None:
        while self.going:
            tasks = [self.queue.new_task("echo", b'{"n":1}') for _ in range(20)]
            try:
                self.acknowledged += [submitted.id for submitted in await self.queue.submit_many(tasks)]
            except StorageError:
                await asyncio.sleep(0.05)  # as a caller would
            await asyncio.sleep(0)

    async def grown(self) -> None:
        """Until more was acknowledged than was by now."""
        until = len(self.acknowledged) + 200
        while len(self.acknowledged) < until:
            await asyncio.sleep(0.01)


async def _all_ended(queue: Queue, ids: list[str]) -> None:
    pending = ids
    while pending:
        tasks: list[Any] = await queue.engine.get(pending)
        assert None not in tasks, "an acknowledged task is lost"
        pending = [task.id for task in tasks if task.status is not Status.COMPLETED]
        await asyncio.sleep(0.05)


@pytest.mark.timeout(120)
async def test_every_acknowledged_task_completes_though_the_server_restarts() -> None:
    registry = Registry()
    registry.add(make_handler(echo, type="echo", options=make_options(echo)))
    with postgres_server() as server:
        async with Queue(PostgresEngine(address_of(server.url()))) as queue:
            load = Load(queue)
            worker = Worker(queue, registry, WorkerSettings(poll=0.1, lease=2.0))
            monitor = Monitor(queue, MonitorSettings(check_interval=0.5, grace=0.5), id="m")
            running = [asyncio.create_task(work) for work in (load.run(), worker.run(), monitor.run())]
            for _ in range(RESTARTS):
                await load.grown()
                await asyncio.to_thread(server.restart)
            await load.grown()
            load.going = False
            await running[0]
            await _all_ended(queue, load.acknowledged)
            worker.stop()
            monitor.stop()
            await asyncio.gather(*running)
        assert [finding for finding in await examine(server.url()) if finding.ok is False] == []


if __name__ == "__main__":
    descriptor = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    asyncio.run(work(sys.argv[1], descriptor, int(sys.argv[3])))
