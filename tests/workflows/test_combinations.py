"""Workflows together with encryption, large values, pauses, retention and `dequeue`."""

from pathlib import Path
from typing import Any

import pytest

import qo
from qo.client import Client
from qo.encryption import Encrypted
from qo.engines.memory import MemoryEngine
from qo.engines.sqlite import SqliteEngine
from qo.monitor import Monitor, MonitorSettings
from qo.testing import ManualClock
from qo.testing.workflow_histories import planned
from qo.worker import Worker, WorkerSettings
from tests.web.serving import served

KEY = Encrypted.new_key()
LARGE = 3_000_000  # bytes; more than a task may have inline
_WAIT_LIMIT = 60.0  # seconds


async def take(client: Client) -> qo.Task:
    (task,) = await client.dequeue("t", wait=_WAIT_LIMIT)
    return task


async def run_two(client: Client, first: Any) -> Any:
    """Run a task and its child with `dequeue`; returns the arguments of the child."""
    await client.workflows.submit("pair", [planned(), planned(0, bound=True)])
    await client.ack(await take(client), first)
    child = await take(client)
    await client.ack(child, "done")
    return qo.decode(child.payload)


@pytest.mark.parametrize("layout", ["tasks", "one", "sqlite", "log"])
async def test_a_large_result_is_an_argument(tmp_path: Path, layout: str) -> None:
    text = "x" * LARGE
    async with qo.connect(f"file://{tmp_path}/bucket?layout={layout}") as client:
        assert await run_two(client, text) == {"results": [text]}


async def test_an_encrypted_result_is_an_argument_and_stays_encrypted(tmp_path: Path) -> None:
    url, secret = f"sqlite:///{tmp_path}/qo.db", "4111 1111 1111 1111"
    async with qo.connect(url, codec=Encrypted([KEY])) as client:
        assert await run_two(client, secret) == {"results": [secret]}
    assert secret.encode() not in _bytes_of(tmp_path)


def _bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_over_http_a_child_gets_the_result(tmp_path: Path) -> None:
    with served(SqliteEngine(tmp_path / "served.db")) as server:
        async with qo.connect(server.url) as client:
            assert await run_two(client, [1, 2]) == {"results": [[1, 2]]}


async def test_a_child_in_a_paused_queue_starts_when_the_queue_is_resumed(tmp_path: Path) -> None:
    app = qo.App(f"sqlite:///{tmp_path}/qo.db")

    @app.task
    def first() -> int:
        return 1

    @app.task(queue="slow")
    def second(number: int) -> int:
        return number + 1

    async with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        await client.controls.pause(queues=["slow"])
        run = await qo.chain(first.s(), second.s()).asubmit()
        await _work(client, app)
        assert (await run.aview()).counts == {"completed": 1, "pending": 1}
        await client.controls.resume(queues=["slow"])
        await _work(client, app)
        assert await run.aresult(timeout=_WAIT_LIMIT) == 2


async def _work(client: Client, app: qo.App) -> None:
    await Worker(client, app.registry, WorkerSettings(drain=True, poll=0.05)).run()


async def test_retention_keeps_a_parent_until_its_children_have_started() -> None:
    clock = ManualClock()
    async with Client(MemoryEngine(clock), clock=clock) as client:
        tasks = [planned(), planned(), planned(0, 1, bound=True)]
        await client.workflows.submit("pair", tasks)
        (parent,) = await client.dequeue("t")
        await client.ack(parent, 5)
        clock.advance(3600.0)
        monitor = Monitor(client, MonitorSettings(retention=60.0), id="m")
        await monitor.check_once()
        assert await client.get(parent.id) is not None  # a child needs its result
        (other,) = await client.dequeue("t")
        await client.ack(other, 6)
        child = await take(client)
        assert sorted(qo.decode(child.payload)["results"]) == [5, 6]
        await client.ack(child, None)
