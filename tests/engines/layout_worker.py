"""Processes of the tests: each adds, claims and completes on a bucket, and logs what was acknowledged.

They are forked from one that has imported everything, so that sixteen are there at once, and each begins when its pipe
`go` was opened. A log is written with one write(2) a line, so what stands in it survives the process.
"""

import asyncio
import os
import sys
from pathlib import Path

from qo.buckets import folder as _folder_bucket
from qo.engines import layouts as _layouts
from qo.engines import one_object as _one
from qo.engines import open_engine
from qo.engines import sqlite_object as _sqlite
from qo.ids import new_id, new_lease_id
from qo.model import NewTask, Want, complete

IMPORTED = (_folder_bucket, _layouts, _one, _sqlite)  # before the forks


async def work(url: str, log: int, rounds: int) -> None:
    engine = open_engine(url)
    for _ in range(rounds):
        added = await engine.add([NewTask(id=new_id(), queue="q", type="t") for _ in range(2)])
        os.write(log, b"".join(b"added %s\n" % task_id.encode() for task_id, _ in added))
        tasks = await engine.claim(Want(worker_id="w", lease_id=new_lease_id(), limit=1))
        done = await engine.apply([complete(task) for task in tasks])
        ended = [task for task, held in zip(tasks, done, strict=True) if held]
        os.write(log, b"".join(b"completed %s\n" % task.id.encode() for task in ended))
    await engine.close()


def child(url: str, folder: Path, name: int, rounds: int) -> None:
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, b"ready %d\n" % os.getpid())
    (folder / f"{name}.go").read_bytes()  # a pipe: returns when the test has opened and closed it
    asyncio.run(work(url, log, rounds))
    os.write(log, b"done %d\n" % os.getpid())


def main(url: str, folder: Path, number: int, rounds: int) -> None:
    pids = []
    for name in range(number):
        os.mkfifo(folder / f"{name}.go")
        if (pid := os.fork()) == 0:
            child(url, folder, name, rounds)
            return
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
