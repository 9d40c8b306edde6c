"""Workers that are killed with -9 and frozen: never more than the limit of a key run, and no slot is lost.

What runs is measured twice: by the started tasks in the store, and by a file to which handlers write.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.buckets.folder import FolderBucket
from qo.client import Client, connect
from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.engines.sqlite import SqliteEngine
from qo.fleet_limits.limit_state import LimitState
from qo.fleet_limits.rules import state_note
from qo.ids import new_id
from qo.model import FINISHED, Filter, NewTask, Status, with_group
from qo.monitor import Monitor, MonitorSettings
from qo.notes import read_or
from qo.testing import ManualClock
from qo.testing.limit_histories import LimitHistory
from qo.testing.s3_server import S3Server
from tests.conditions import delay, until
from tests.engines.layouts import LAYOUTS
from tests.engines.redis_engines import fresh, opened
from tests.servers.process import ROOT
from tests.torture.limit_program import LEASE, LIMIT, write_line
from tests.torture.stores import FOLDERS, STORES, store_url

IS_LONG = bool(os.environ.get("QO_TORTURE"))
_CUSTOMERS, _WORKERS = 3, 3
_TASKS_PER_KILL = 20
_MAX_FREEZE = LEASE / 4  # seconds: a worker that is frozen for longer than its lease may run on for a moment


@pytest.fixture(params=(*STORES, "s3") if IS_LONG else ("sqlite",))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "s3":
        async with S3Server() as server:
            yield server.url
        return
    with store_url(request.param, request, tmp_path) as url:
        yield url


def start(url: str, path: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.torture.limit_program", url, str(path)]
    return subprocess.Popen(command, cwd=ROOT, env=environment)


async def submit(client: Client, number: int, first: int = 0) -> list[str]:
    """Tasks with numbers from `first`: the file tells the runs of a process apart by these."""
    tasks = [
        NewTask(
            id=new_id(),
            queue="default",
            type="charge",
            payload=b'{"customer_id":%d,"number":%d}' % (n % _CUSTOMERS, n),
            needs=with_group((), f"customer_id={n % _CUSTOMERS}"),
            max_retries=100,
        )
        for n in range(first, first + number)
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


async def hurt(url: str, path: Path, workers: list["subprocess.Popen[bytes]"], dice: random.Random, size: int) -> None:
    """Kill a worker and start another, and sometimes freeze one for a while, when the file is larger than `size`."""
    await until(_has_grown, path, size)
    await delay(dice.uniform(0.0, 0.2))
    if dice.random() < 0.3:
        frozen = dice.choice(workers)
        frozen.send_signal(signal.SIGSTOP)
        await delay(dice.uniform(0.0, _MAX_FREEZE))
        frozen.send_signal(signal.SIGCONT)
    doomed = workers.pop(0)
    doomed.kill()
    doomed.wait(60)
    write_line(str(path), "killed", doomed.pid)
    workers.append(start(url, path))


async def test_killed_workers_never_let_more_than_the_limit_run(
    store: str, tmp_path: Path, scale: int, seed: int
) -> None:
    path, dice, kills = tmp_path / "runs.txt", random.Random(seed), 20 * scale if IS_LONG else 3
    async with connect(store) as client:
        ids = await submit(client, 60)
        monitor = Monitor(client, MonitorSettings(check_interval=0.3, grace=0.2), id="m")
        background = [asyncio.create_task(monitor.run()), asyncio.create_task(watch(client))]
        workers = [start(store, path) for _ in range(_WORKERS)]
        try:
            for _ in range(kills):
                size = _size(path)
                ids += await submit(client, _TASKS_PER_KILL, len(ids))  # a quick store has none left
                await hurt(store, path, workers, dice, size)
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


async def test_workers_that_are_frozen_for_longer_than_their_lease_leave_no_slot_behind(
    store: str, tmp_path: Path, scale: int
) -> None:
    """What they run overlaps with the next attempt, as documented. The slots in the store are never too many."""
    path = tmp_path / "runs.txt"
    async with connect(store) as client:
        ids: list[str] = []
        monitor = Monitor(client, MonitorSettings(check_interval=0.3, grace=0.2), id="m")
        background = [asyncio.create_task(monitor.run()), asyncio.create_task(watch(client))]
        workers = [start(store, path) for _ in range(2)]
        try:
            for at in range(2 * scale if IS_LONG else 1):
                size = _size(path)
                ids += await submit(client, 60, len(ids))  # on a quick store the tasks end while a worker is frozen
                await until(_has_grown, path, size)
                frozen = workers[at % 2]
                frozen.send_signal(signal.SIGSTOP)
                await until(lambda: _is_expired(client))
                frozen.send_signal(signal.SIGCONT)
            await until(lambda: _all_done(client, ids, background))
            await until(lambda: _has_no_holders(client))
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
                worker.wait(60)
            for each in background:
                each.cancel()
        for each in background:
            with contextlib.suppress(asyncio.CancelledError):
                await each


async def _is_expired(client: Client) -> bool:
    """Whether all leases of the frozen worker have expired, or it held none: the others renew theirs."""
    running = await client.engine.find(Filter(statuses=(Status.RUNNING,)), limit=1000)
    now = await client.engine.now()
    is_pending = (await client.engine.find(Filter(statuses=(Status.PENDING,)), limit=1)) != []
    frozen = [task for task in running if task.lease_expires_at is not None and task.lease_expires_at < now + 0.5]
    return bool(frozen) or not (is_pending or running)


async def _has_no_holders(client: Client) -> bool:
    state = await read_or(client.engine, state_note("type:charge"), LimitState, LimitState())
    return not state.holders


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=("memory", "sqlite", "postgres", "redis", *FOLDERS) if IS_LONG else ("memory",))
async def engine(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Engine]:
    made: Engine
    match request.param:
        case "redis":
            async with opened(fresh(request.getfixturevalue("redis_server")), clock) as redis:
                yield redis
            return
        case "memory":
            made = MemoryEngine(clock)
        case "sqlite":
            made = SqliteEngine(tmp_path / "qo.db", clock)
        case "postgres":
            url = request.getfixturevalue("postgres").url()
            made = PostgresEngine(address_of(f"{url}?schema=limits"), clock)
        case layout:
            made = LAYOUTS[layout.removeprefix("folder-")](FolderBucket(tmp_path / "bucket"), clock)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def test_random_histories_of_workers_keep_to_the_limits(
    engine: Engine, clock: ManualClock, scale: int, seed: int
) -> None:
    for number in range(20 * scale if IS_LONG else 2):
        await LimitHistory(engine, clock, seed + number).run(steps=300 if IS_LONG else 60)


def _has_grown(path: Path, size: int) -> bool:
    return _size(path) > size


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def _all_done(client: Client, ids: list[str], background: list[asyncio.Task[None]]) -> bool:
    for each in background:
        if each.done():
            each.result()
    tasks = await client.engine.get_without_values(ids)
    return all(task is not None and task.status in FINISHED for task in tasks)
