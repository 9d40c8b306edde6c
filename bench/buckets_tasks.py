"""Tasks a second on the layout `tasks` against a store as far away as a cloud: `python bench/buckets_tasks.py [TASKS] [SLOTS]`.

The store is qo's own small S3 in a process of its own, with 28 ms to a PUT or DELETE and 25 ms to a GET or LIST. One worker
process runs no-op tasks in so many slots. Beside the rate, it tells what the worker's processor time was per task: where
that times the rate is near one second, the interpreter is the limit, and not the waiting for the store.
"""

import asyncio
import subprocess
import sys
import time

from qo.client import Client
from qo.engines import open_engine
from qo.ids import new_id
from qo.model import NewTask
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Worker, WorkerSettings

TASKS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 3000
SLOTS = int(sys.argv[2]) if len(sys.argv) > 2 else 64
CONNECTIONS = 256
SERVER = """
import asyncio
from qo.testing import Latency, S3Server

async def main():
    async with S3Server(latency=Latency(put=0.028, get=0.025, list=0.025, delete=0.028)) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def nothing() -> None: ...


async def run(url: str) -> None:
    registry = Registry()
    registry.add(make_handler(nothing, type="nothing", options=make_options(nothing)))
    async with Client(open_engine(f"{url}&connections={CONNECTIONS}")) as client:
        began = time.perf_counter()
        await client.submit_many(
            [NewTask(id=new_id(), queue="default", type="nothing", payload=b"{}") for _ in range(TASKS)]
        )
        print(f"submitted {TASKS / (time.perf_counter() - began):,.0f} tasks/s")
        worker = Worker(client, registry, WorkerSettings(concurrency=SLOTS))
        began, used = time.perf_counter(), time.process_time()
        working = asyncio.create_task(worker.run())
        while worker.completed < TASKS:  # noqa: ASYNC110 - a worker tells nobody
            await asyncio.sleep(0.01)
        took, used = time.perf_counter() - began, time.process_time() - used
        worker.stop()
        await working
        print(
            f"ran {TASKS / took:,.0f} tasks/s with {SLOTS} slots; {1000 * used / TASKS:.2f} ms of processor time a task"
        )


def main() -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        asyncio.run(run(server.stdout.readline().strip()))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
