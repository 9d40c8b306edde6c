"""A process of the tests: adds, claims and completes in a loop, and logs what was acknowledged.

The log is written with one write(2) a line, so what stands in it survives the process.
"""

import asyncio
import multiprocessing
import os
from multiprocessing.process import BaseProcess
from pathlib import Path

from qo.engines.sqlite import SqliteEngine
from qo.ids import new_id, new_lease_id
from qo.model import NewTask, Want, complete, release

ENDLESS = 10**9
# Its server has imported this module once; what it forks is at work within milliseconds, not half a second.
_nursery = multiprocessing.get_context("forkserver")
_nursery.set_forkserver_preload([__name__])


def start(path: Path, log: Path, rounds: int = ENDLESS) -> BaseProcess:
    process = _nursery.Process(target=_run, args=(path, log, rounds), daemon=True)
    process.start()
    return process


def _run(path: Path, log: Path, rounds: int) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    asyncio.run(_work(path, descriptor, rounds))


async def _work(path: Path, log: int, rounds: int) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    os.write(log, b"opened\n")
    for n in range(rounds):
        added = await engine.add([NewTask(id=new_id(), queue="q", type="t") for _ in range(3)])
        os.write(log, b"".join(b"added %s\n" % task_id.encode() for task_id, _ in added))
        tasks = await engine.claim(Want(worker_id="w", lease_id=new_lease_id(), limit=3))
        changes = [release(task) if (n + m) % 7 == 0 else complete(task) for m, task in enumerate(tasks)]
        answers = zip(tasks, changes, await engine.apply(changes), strict=True)
        done = [task for task, change, held in answers if held and change.to == "completed"]
        os.write(log, b"".join(b"completed %s %d\n" % (task.id.encode(), task.attempt) for task in done))
    await engine.close()
