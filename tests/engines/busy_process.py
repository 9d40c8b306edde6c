"""A process of the tests: adds, claims and completes in a loop, and logs what was acknowledged.

The log is written with one write(2) a line, so what stands in it survives the process.
"""

import asyncio
import os
import sys

from qo.engines import open_engine
from qo.ids import new_id, new_lease_id
from qo.model import NewTask, RetryPolicy, Status, Want, complete, release

LEASE = 0.5  # seconds: short, so that what a killed process held can soon be given to others
SOON = RetryPolicy(initial=0.01, max=0.01)


async def work(url: str, log: int, rounds: int) -> None:
    engine = open_engine(url)
    await engine.open()
    os.write(log, b"opened\n")
    for n in range(rounds):
        new = [NewTask(id=new_id(), queue="q", type="t", max_retries=100, retry=SOON) for _ in range(3)]
        added = await engine.add(new)
        os.write(log, b"".join(b"added %s\n" % task_id.encode() for task_id, _ in added))
        tasks = await engine.claim(Want(worker_id="w", lease_id=new_lease_id(), limit=3, lease=LEASE))
        changes = [release(task) if (n + m) % 7 == 0 else complete(task) for m, task in enumerate(tasks)]
        answers = zip(tasks, changes, await engine.apply(changes), strict=True)
        done = [task for task, change, held in answers if held and change.to is Status.COMPLETED]
        os.write(log, b"".join(b"completed %s %d\n" % (task.id.encode(), task.attempt) for task in done))
    await engine.close()


if __name__ == "__main__":
    descriptor = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    asyncio.run(work(sys.argv[1], descriptor, int(sys.argv[3])))
