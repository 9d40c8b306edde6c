"""Real processes on one database: started together, killed at random, and used during a restart of the server."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from qo.client import Client
from qo.engines import examine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.errors import StorageError
from qo.model import Status
from qo.monitor import Monitor, MonitorSettings
from qo.tasks import Registry, make_handler, make_options
from qo.testing.samples import claim_request
from qo.worker import Worker, WorkerSettings
from tests.conditions import delay, until
from tests.engines.busy_process import start
from tests.engines.killing import check, ended, kill_again_and_again, kills
from tests.servers.postgres import postgres_server, url

__all__ = ["url"]  # a fixture

KILLS = kills(10)
RESTARTS = 3


async def test_nothing_acknowledged_is_lost_when_processes_are_killed(url: str, tmp_path: Path) -> None:
    told = await kill_again_and_again(url, tmp_path, KILLS)
    assert len(told.added) >= 3 * KILLS and len(told.completed) > KILLS, (len(told.added), len(told.completed))
    await check(url, told)
    assert [finding for finding in await examine(url) if finding.ok is False] == []


def test_many_processes_may_create_the_schema_concurrently(url: str, tmp_path: Path) -> None:
    logs = [tmp_path / f"{n}.log" for n in range(8)]
    processes = [start(url, log, rounds=2) for log in logs]
    assert [ended(process) for process in processes] == [0] * 8
    with psycopg.connect(url.partition("?")[0]) as db:
        assert db.execute("SELECT count(*) FROM test.tasks").fetchone() == (8 * 2 * 3,)
        assert db.execute("SELECT count(*) FROM test.lanes").fetchone() == (1,)


async def test_a_notification_of_another_process_ends_the_wait(url: str, tmp_path: Path) -> None:
    engine = PostgresEngine(address_of(url))
    await engine.open()
    statements, asked = 0, claim_request(limit=1)
    process = start(url, tmp_path / "log", rounds=40)
    async with asyncio.timeout(30):
        while not await engine.claim(asked):
            statements += 1
            await engine.wait(asked, 60)
    assert statements <= 6  # it was notified, and did not poll
    assert await asyncio.to_thread(ended, process) == 0
    await engine.close()


# --- a server that restarts


async def echo(n: int) -> int:
    return n


class Load:
    """A producer that continues after errors, and records the acknowledged ids."""

    def __init__(self, client: Client) -> None:
        self.client, self.acknowledged = client, list[str]()
        self.going = True

    async def run(self) -> None:
        while self.going:
            tasks = [self.client.new_task("echo", b'{"n":1}') for _ in range(20)]
            try:
                self.acknowledged += [submitted.id for submitted in await self.client.submit_many(tasks)]
            except StorageError:
                await delay(0.05)  # as a caller would wait
            await asyncio.sleep(0)

    async def grown(self) -> None:
        """Wait until more tasks are acknowledged."""
        enough = len(self.acknowledged) + 200
        await until(lambda: len(self.acknowledged) >= enough)


async def _all_ended(client: Client, ids: list[str]) -> None:
    async def have_ended() -> bool:
        tasks = await client.engine.get(ids)
        assert None not in tasks, "an acknowledged task is lost"
        return all(task and task.status is Status.COMPLETED for task in tasks)

    await until(have_ended)


@pytest.mark.timeout(120)
async def test_every_acknowledged_task_completes_although_the_server_restarts() -> None:
    registry = Registry()
    registry.add(make_handler(echo, type="echo", options=make_options(echo)))
    with postgres_server() as server:
        async with Client(PostgresEngine(address_of(server.url()))) as client:
            load = Load(client)
            worker = Worker(client, registry, WorkerSettings(poll=0.1, lease=2.0))
            monitor = Monitor(client, MonitorSettings(check_interval=0.5, grace=0.5), id="m")
            running = [asyncio.create_task(work) for work in (load.run(), worker.run(), monitor.run())]
            for _ in range(RESTARTS):
                await load.grown()
                await asyncio.to_thread(server.restart)
            await load.grown()
            load.going = False
            await running[0]
            await _all_ended(client, load.acknowledged)
            worker.stop()
            monitor.stop()
            await asyncio.gather(*running)
        assert [finding for finding in await examine(server.url()) if finding.ok is False] == []
