"""How long a cancelled task runs on: `python -m bench.cancellation [store ...]`, with servers of its own.

For each store and executor, tasks run in a worker, and another client cancels them one after the other, at moments that do not depend on the
worker's reads. The time is measured from the call of `cancel` to the exception in the handler. The limit is two seconds.
"""

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import qo
from qo.client import Client
from qo.clock import boot_clock
from qo.engines import open_engine
from qo.ids import new_token
from qo.worker import Worker, WorkerSettings
from tests.engines.http_server import server
from tests.servers.postgres import postgres_server
from tests.servers.redis import running as redis_running

STORES = ("sqlite", "postgres", "redis", "http")
EXECUTORS = ("async", "thread", "process")
LIMIT = 2.0  # seconds
AT_ONCE = 4  # tasks that run beside each other
FOLDER = "QO_BENCH_CANCELLED"
app = qo.App("memory://")


def _record(word: str) -> None:
    path = Path(os.environ[FOLDER]) / f"{qo.current_task().id}.{word}"
    path.with_suffix(".new").write_text(repr(boot_clock()))
    path.with_suffix(".new").rename(path)


async def _sleep() -> None:
    _record("started")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        _record("stopped")
        raise


def _wait() -> None:
    import threading

    _record("started")
    event = threading.Event()
    try:
        while not event.wait(0.01):
            pass
    except qo.Cancelled:
        _record("stopped")
        raise


app.task(name="async")(_sleep)
app.task(name="thread", executor="thread")(_wait)
app.task(name="process", executor="process")(_wait)


@contextlib.asynccontextmanager
async def store(name: str, folder: Path) -> AsyncIterator[str]:
    if name == "sqlite":
        yield f"sqlite:///{folder}/qo.db"
    elif name == "postgres":
        with postgres_server() as running:
            yield f"{running.url()}?schema=t{new_token()[:12]}"
    elif name == "redis":
        with redis_running() as running:
            yield running.url
    else:
        with server() as running:
            async with running.serving(open_engine(f"sqlite:///{folder}/served.db")):
                yield running.url


async def seen(folder: Path, task_id: str, word: str) -> float:
    path = folder / f"{task_id}.{word}"
    async with asyncio.timeout(60):
        while not path.exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.01)
    return float(path.read_text())


async def one(client: Client, folder: Path, executor: str, turn: asyncio.Semaphore) -> float:
    async with turn:
        handle = await client.enqueue(executor, {})
        await seen(folder, handle.id, "started")
        await asyncio.sleep(random.uniform(0.5, 2.0))
        began = boot_clock()
        await client.cancel(handle.id)
        return await seen(folder, handle.id, "stopped") - began


async def measure(url: str, folder: Path, number: int) -> dict[str, list[float]]:
    async with Client(open_engine(url)) as there, Client(open_engine(url)) as here:
        worker = Worker(there, app.registry, WorkerSettings(lease=600.0, grace=2.0))
        running = asyncio.create_task(worker.run())
        turns = {executor: asyncio.Semaphore(AT_ONCE) for executor in EXECUTORS}
        found = {}
        for executor in EXECUTORS:
            found[executor] = await asyncio.gather(
                *(one(here, folder, executor, turns[executor]) for _ in range(number))
            )
        worker.stop()
        await running
        return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", default=STORES)
    parser.add_argument("--number", type=int, default=20)
    given = parser.parse_args()
    for name in given.stores:
        with tempfile.TemporaryDirectory() as place:
            os.environ[FOLDER] = place
            async with store(name, Path(place)) as url:
                for executor, times in (await measure(url, Path(place), given.number)).items():
                    word = "ok" if max(times) <= LIMIT else "TOO SLOW"
                    middle = statistics.median(times)
                    figures = f"p50 {middle:.2f} s  max {max(times):.2f} s  of {len(times)}"
                    print(f"{name:9}{executor:8} {figures}  {word}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
