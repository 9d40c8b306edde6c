"""A process or a machine whose clock is ten minutes off takes no lease away and holds none too long."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from qo import clock
from qo.client import Client
from qo.clock import system_clock
from qo.engines import open_engine
from qo.model import UNFINISHED, Status, Task
from qo.monitor import Monitor, MonitorSettings
from qo.notes import WorkerNote
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Worker, WorkerSettings
from tests.conditions import delay
from tests.servers.postgres import url
from tests.servers.redis import Server

__all__ = ["url"]  # a fixture

OFF = 600.0  # seconds
IS_LONG = bool(os.environ.get("QO_TORTURE"))
LEASE = 6.0 if IS_LONG else 2.0  # the long run shares its cores with others: a renewal may be seconds late
SHIFTED = Path(__file__).with_name("shifted")
KINDS = ["sqlite", "tasks", *(["one", "database", "log"] if IS_LONG else [])]


@contextmanager
def worker(url: str, offset: float, name: str, log: Path) -> Iterator[Popen[bytes]]:
    """`qo worker` with one slot and a monitor, in a process whose clock is off."""
    words = ["worker", "tests.torture.clock_app:app", "--url", url, "--id", name, "--concurrency", "1"]
    words += ["--lease", f"{LEASE}s", "--check-interval", "1s", "--expiry-grace", "0s"]
    environment = os.environ | {
        "QO_URL": url,
        "QO_CLOCK_OFFSET": str(offset),
        "QO_CLOCK_STEP": str(log.with_name("step")),
        "PYTHONPATH": os.pathsep.join([str(SHIFTED), str(Path.cwd()), *sys.path]),
    }
    with log.open("wb") as out:
        process = Popen([sys.executable, "-m", "qo", *words], env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)  # a task that still runs has 30 s


async def task_of(client: Client, task_id: str) -> Task:
    task = await client.get(task_id)
    assert task is not None
    return task


async def until_renewed(client: Client, task_ids: list[str], times: int) -> None:
    """Until each lease was renewed so many times from now on."""
    for task_id in task_ids:
        version = (await task_of(client, task_id)).version
        while (task := await task_of(client, task_id)).version < max(2, version) + times:
            assert task.attempt <= 1 and task.status in UNFINISHED
            await delay(0.1)


@pytest.mark.parametrize("kind", KINDS)
async def test_processes_with_wrong_clocks_share_a_file(kind: str, scale: int, tmp_path: Path) -> None:
    """Three workers, one right, one behind, one ahead: every task runs once, however long.

    Then the clock of the machine is set, for all three.
    """
    (tmp_path / "store").mkdir()
    (tmp_path / "step").write_text("0")
    url = {
        "sqlite": f"sqlite:///{tmp_path}/qo.db",
        "tasks": f"file://{tmp_path}/store?layout=tasks",
        "one": f"file://{tmp_path}/store?layout=one",
        "database": f"file://{tmp_path}/store?layout=sqlite",
        "log": f"file://{tmp_path}/store?layout=log",
    }[kind]
    async with Client(open_engine(url)) as client:
        ids = [
            (await client.enqueue("hold", {"name": str(n), "folder": str(tmp_path)}, max_retries=0)).id
            for n in range(3)
        ]
        with (
            worker(url, -OFF, "behind", tmp_path / "behind.log"),
            worker(url, 0.0, "right", tmp_path / "right.log"),
            worker(url, +OFF, "ahead", tmp_path / "ahead.log"),
        ):
            renewals = 2 + 2 * scale
            async with asyncio.timeout(120 * scale):
                await until_renewed(client, ids, renewals)  # every monitor has looked at every lease
                (tmp_path / "new step").write_text(f"{OFF:.0f}")
                (tmp_path / "new step").replace(tmp_path / "step")
                await until_renewed(client, ids, renewals)
                (tmp_path / "go").touch()
                for task_id in ids:
                    while (task := await task_of(client, task_id)).status is Status.RUNNING:
                        await delay(0.05)
                    assert (task.status, task.attempt) == (Status.COMPLETED, 1)
                    assert abs((task.completed_at or 0.0) - OFF - system_clock()) < 60
        assert sorted((tmp_path / "starts").read_text().split()) == ["0", "1", "2"]


def test_a_process_with_a_patched_clock_uses_the_machines_clock() -> None:
    script = (
        "import time; real = time.time; time.time = lambda: real() - 600; from qo.clock import system_clock;"
        "print(abs(system_clock() - real()) < 60)"
    )
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "True"
    kernel = clock.kernel_clock()
    assert kernel is not None and abs(kernel - system_clock()) < 60


@pytest.mark.parametrize("off", [-OFF, OFF], ids=["behind", "ahead"])
async def test_workers_and_monitors_of_a_machine_with_a_wrong_clock_use_the_stores(
    off: float, url: str, redis_server: Server, tmp_path: Path
) -> None:
    for store in (
        url,
        f"{redis_server.url}?prefix=clock{off:.0f}",
        f"sqlite:///{tmp_path}/qo.db",
        f"file://{tmp_path}/store?layout=tasks",
    ):
        (tmp_path / "store").mkdir(exist_ok=True)
        async with Client(open_engine(store)) as client:
            await check_notes(client, lambda: system_clock() + off)


async def check_notes(client: Client, wrong: clock.Clock) -> None:
    async def fine() -> None: ...

    registry = Registry()
    registry.add(make_handler(fine, type="fine", options=make_options(fine)))
    running = {}
    for name, now in (("wrong", wrong), ("right", system_clock)):
        made = Worker(client, registry, WorkerSettings(id=name, heartbeat=0.2, poll=0.1), wall_clock=now)
        running[made] = asyncio.create_task(made.run())
    try:
        notes: dict[str, WorkerNote] = {}
        async with asyncio.timeout(30):
            while notes.keys() != {"wrong", "right"}:
                notes = {note.worker_id: note for note in await client.workers()}
        store_now = await client.engine.now()
        assert all(abs(store_now - note.last_heartbeat) < 60 for note in notes.values())
        for monitor_clock in (wrong, system_clock):
            monitor = Monitor(client, MonitorSettings(), id="m", clock=monitor_clock)
            checked = await monitor.check()
            assert (checked.led, checked.dead_workers) == (True, 0)  # nor does the one before keep it from leading
            await monitor.resign()
        assert {note.status for note in await client.workers()} == {"active"}
    finally:
        for made in running:
            made.stop()
        await asyncio.gather(*running.values())
