"""A worker that its store could not hear for longer than a lease runs no task twice, and loses none of its slots."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from qo.client import Client
from qo.engines import open_engine
from qo.ids import new_token
from qo.model import RetryPolicy, Status, Task
from qo.monitor import Monitor, MonitorSettings
from qo.running_task import current_task
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Worker, WorkerSettings
from tests.conditions import until
from tests.engines.http_server import server
from tests.servers.redis_proxy import Proxy

SLOTS = 4
QUICK = RetryPolicy(initial=0.05, max=0.1, jitter=0)


class Attempts:
    """How many attempts of each task run at the same time. They heed no cancellation until they are let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.go, self.running, self.most = threading.Event(), Counter[str](), Counter[str]()

    def hold(self) -> None:
        task_id = current_task().id
        with self._lock:
            self.running[task_id] += 1
            self.most[task_id] = max(self.most[task_id], self.running[task_id])
        try:
            self.go.wait(120)  # in C, where a cancellation is not heard
        finally:
            with self._lock:
                self.running[task_id] -= 1

    def number_running(self, number: int) -> bool:
        return sum(self.running.values()) == number


async def all_of(client: Client, ids: list[str]) -> list[Task]:
    return [task for task in await client.engine.get(ids) if task is not None]


async def all_completed(client: Client, ids: list[str]) -> bool:
    return all(task.status is Status.COMPLETED for task in await all_of(client, ids))


async def expire_all(client: Client, ids: list[str]) -> None:
    """As the monitor of another machine does."""
    monitor = Monitor(client, MonitorSettings(grace=0.1), id="elsewhere")

    async def all_expired() -> bool:
        await monitor.check()
        return all(task.failures for task in await all_of(client, ids))

    await until(all_expired)


def handlers(attempts: Attempts, together: threading.Barrier) -> Registry:
    def hold() -> None:  # in here, where no child process finds it: an attempt after a lost one would run in a child
        attempts.hold()

    def everyone() -> None:
        together.wait(60)

    registry = Registry()
    for function in (hold, everyone):
        options = make_options(function, concurrency=SLOTS)
        registry.add(make_handler(function, type=function.__name__, options=options))
    return registry


class Wired(NamedTuple):
    """A store behind a wire that can be cut."""

    direct: str  # the way to it that stays open
    through: str  # the way that is cut; it names the port of the server

    @property
    def port(self) -> int:
        port = urlsplit(self.through).port
        assert port is not None
        return port

    def by(self, proxy: Proxy) -> str:
        return self.through.replace(f":{self.port}", f":{proxy.port}", 1)


@pytest.fixture(params=["redis", "postgres", "http"])
async def wired(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Wired]:
    name = f"t{new_token()[:12]}"
    if request.param == "redis":
        url = f"{request.getfixturevalue('redis_server').url}?prefix={name}"
        yield Wired(url, url)
    elif request.param == "postgres":
        url = f"{request.getfixturevalue('postgres').url()}?schema={name}"
        yield Wired(url, url)
    else:
        store = f"sqlite:///{tmp_path}/qo.db"
        with server() as running:
            async with running.serving(open_engine(store)):
                yield Wired(store, running.url)


async def test_after_a_partition_no_task_runs_twice_in_one_worker(wired: Wired, scale: int) -> None:
    for round_ in range(scale):
        attempts, together = Attempts(), threading.Barrier(SLOTS)
        registry = handlers(attempts, together)
        async with (
            Proxy(wired.port) as proxy,
            Client(open_engine(wired.direct)) as here,
            Client(open_engine(wired.by(proxy))) as there,
            asyncio.timeout(120),
        ):
            settings = WorkerSettings(id=f"w{round_}", concurrency=SLOTS, lease=1.5, poll=0.1, grace=5.0)
            worker = Worker(there, registry, settings)
            working = asyncio.create_task(worker.run())
            ids = [(await here.enqueue("hold", {}, max_retries=9, retry=QUICK)).id for _ in range(SLOTS)]
            await until(attempts.number_running, SLOTS)
            if round_ % 2:
                proxy.silence()
            else:
                await proxy.cut()
            await expire_all(here, ids)
            await proxy.heal()
            await until(lambda w: not w.status.leases, worker)  # the worker knows that it has lost them
            attempts.go.set()
            await until(all_completed, here, ids)
            assert set(attempts.most.values()) == {1}
            # Every slot is free again, and so is every place of a type.
            more = [(await here.enqueue("everyone", {}, max_retries=0)).id for _ in range(SLOTS)]
            await until(all_completed, here, more)
            worker.stop()
            await working
