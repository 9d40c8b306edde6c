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
from qo.tasks import Registry, current_task, make_handler, make_options
from qo.worker import Worker, WorkerSettings
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


async def all_of(queue: Client, ids: list[str]) -> list[Task]:
    return [task for task in await queue.engine.get(ids) if task is not None]


async def expire_all(queue: Client, ids: list[str]) -> None:
    """As the monitor of another machine does."""
    monitor = Monitor(queue, MonitorSettings(grace=0.1), id="elsewhere")
    while any(task.failures == 0 for task in await all_of(queue, ids)):
        await monitor.check()
        await asyncio.sleep(0.1)


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
            while sum(attempts.running.values()) < SLOTS:
                await asyncio.sleep(0.05)
            if round_ % 2:
                proxy.silence()
            else:
                await proxy.cut()
            await expire_all(here, ids)
            await proxy.heal()
            while worker._leased_runs.leased() or any(
                run.ended is None and not run.lost for run in worker._leased_runs.runs()
            ):
                await asyncio.sleep(0.05)  # until the worker knows
            attempts.go.set()
            while any(task.status is not Status.COMPLETED for task in await all_of(here, ids)):
                await asyncio.sleep(0.05)
            assert set(attempts.most.values()) == {1}
            # Every slot is free again, and so is every place of a type.
            more = [(await here.enqueue("everyone", {}, max_retries=0)).id for _ in range(SLOTS)]
            while any(task.status is not Status.COMPLETED for task in await all_of(here, more)):
                await asyncio.sleep(0.05)
            worker.stop()
            await working
