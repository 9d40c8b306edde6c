"""The code that other processes of the Redis tests run."""

import asyncio
import sys

from qo.client import Client, connect
from qo.engines import open_engine
from qo.ids import new_id
from qo.model import NewTask
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Worker, WorkerSettings


async def add_one(url: str) -> None:
    async with Client(open_engine(url)) as client:
        await client.engine.add([NewTask(id=new_id(), queue="q", type="t")])


async def count_up(n: int) -> int:
    return n + 1


def registry() -> Registry:
    known = Registry()
    known.add(make_handler(count_up, type="count_up", options=make_options(count_up)))
    return known


async def work(url: str) -> None:
    async with connect(url) as client:
        await Worker(client, registry(), WorkerSettings(lease=1.5, heartbeat=1.0)).run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
