"""A worker process of `test_limits`: it writes the start and the end of each handler to a file.

Arguments: the URL of the store, and the file.
"""

import asyncio
import os
import sys

import qo
from qo.client import connect
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Worker, WorkerSettings
from tests.conditions import delay

LIMIT = qo.Limit(concurrency=2, key="customer_id")
LEASE = 3.0  # seconds


def write_line(path: str, *words: object) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    os.close(descriptor)


async def main(url: str, path: str) -> None:
    async def charge(customer_id: int, number: int) -> None:
        run = f"{os.getpid()}-{number}"
        write_line(path, "start", customer_id, run)
        await delay(0.05)
        write_line(path, "end", customer_id, run)

    registry = Registry()
    registry.add(make_handler(charge, type="charge", options=make_options(charge, limit=LIMIT)))
    async with connect(url) as client:
        settings = WorkerSettings(concurrency=6, lease=LEASE, poll=0.05)
        await Worker(client, registry, settings).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
