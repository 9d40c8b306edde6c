"""Ten schedulers in one process, in a time that passes faster: `python schedule_program.py URL START BEGAN SPEED`."""

import asyncio
import sys

from qo.client import Client
from qo.clock import Clock, boot_clock, system_clock
from qo.engine import Engine
from qo.engines import open_engine
from qo.monitor.scheduler import Scheduler
from qo.store_time import StoreTime

SCHEDULERS = 10


def fast_clock(start: float, began: float, speed: float) -> Clock:
    """`start` when the system's clock showed `began`, and from then on `speed` times as fast."""
    return lambda: start + (system_clock() - began) * speed


def scheduler(client: Client, clock: Clock) -> Scheduler:
    return Scheduler(client, clock=StoreTime(client.engine, clock, clock), elapsed=boot_clock)


def engine_of(url: str, clock: Clock) -> Engine:
    """A server has its own clock."""
    return open_engine(url) if url.startswith("http") else open_engine(url, clock=clock)


async def run(url: str, clock: Clock) -> None:
    async with Client(engine_of(url, clock), clock=clock) as client:
        await asyncio.gather(*(scheduler(client, clock).run() for _ in range(SCHEDULERS)))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], fast_clock(*map(float, sys.argv[2:5]))))
