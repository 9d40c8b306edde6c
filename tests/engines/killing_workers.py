"""Real `qo worker` processes, killed while they run tasks."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from qo.client import Client, connect
from qo.engine import Engine
from qo.model import UNFINISHED, Filter
from tests.conditions import delay, until
from tests.engines.busy_process import SOON
from tests.engines.killing import DEADLINE, Told, new_dice
from tests.servers.process import ROOT

QUICK = ("--lease", "1", "--heartbeat", "0.2", "--poll", "0.1", "--check-interval", "0.2", "--expiry-grace", "0.1")
_FAST_TASKS = 96  # submit this many quickly, then slowly: a busy machine would take minutes to finish the backlog
Worker = subprocess.Popen[bytes]


async def kill_workers(url: str, folder: Path, number: int) -> Told:
    """One after another is killed while it runs tasks; a last one, at work from the beginning, finishes them all."""
    dice, added, logs = new_dice(), set[str](), [folder / f"{n}.log" for n in range(number)]
    last, doomed = start(url, folder), [start(url, folder, logs[0])]
    async with connect(url) as client:
        try:
            for n, log in enumerate(logs):
                doomed += [start(url, folder, following) for following in logs[n + 1 : n + 2]]  # while others work
                added |= await submit_until_it_hangs(client, log)
                await delay(dice.uniform(0.0, 0.1))  # any moment
                end(doomed.pop(0), signal.SIGKILL)
            await until_done(client.engine)
            await asyncio.to_thread(end, last, signal.SIGTERM)
        finally:
            for process in [last, *doomed]:
                process.kill()
                process.wait(60)
        interrupted = {task_id for log in logs for task_id in log.read_text().split()}
        assert all(task and task.attempt > 1 for task in await client.engine.get(sorted(interrupted)))
    return Told(added, [])


def start(url: str, folder: Path, log: Path | None = None, *, slow: float = 0.0) -> Worker:
    """With a log, a worker that does not end every task: see the app."""
    variables = {"SLOW_TASKS": str(slow)} | ({"LOG_OF_THE_KILLED": str(log)} if log else {})
    return start_qo(url, folder, "worker", "tests.engines.killed_app:app", *QUICK, **variables)


def start_qo(url: str, folder: Path, *words: str, **variables: str) -> Worker:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QO_")}
    environment |= {"PYTHONPATH": str(ROOT / "src"), **variables}
    command = [sys.executable, "-m", "qo", "--url", url, *words]
    with (folder / "workers.txt").open("ab") as output:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=output)


def end(worker: Worker, by: signal.Signals) -> None:
    """A kill is for the worker process too, which its supervisor would replace and which would end in order."""
    doomed = children(worker.pid) if by is signal.SIGKILL else []
    worker.send_signal(by)
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, by)
    assert worker.wait(60) == (-by if by is signal.SIGKILL else 0), "a worker ended by itself"


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


async def submit_until_it_hangs(client: Client, log: Path) -> set[str]:
    added = set[str]()
    async with asyncio.timeout(DEADLINE):
        await until(lambda: said(log) is not None)
        while not said(log):
            batch = [client.new_task("count_up", b'{"n":%d}' % n, max_retries=100, retry=SOON) for n in range(6)]
            added |= {submitted.id for submitted in await client.submit_many(batch)}
            await delay(0.1 if len(added) < _FAST_TASKS else 1.0)  # a producer at its own pace
    return added


def said(log: Path) -> str | None:
    return log.read_text() if log.exists() else None


async def until_done(engine: Engine) -> None:
    async def is_done() -> bool:
        return not await engine.find(Filter(statuses=tuple(UNFINISHED)), limit=1)

    await until(is_done)
