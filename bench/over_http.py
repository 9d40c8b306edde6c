"""How fast is a worker over HTTP? `python -m bench.over_http [TASKS]`: no-op tasks a second on SQLite with one server process,
next to the same worker on the same file without a server. Each side runs in processes of its own.
"""

import asyncio
import subprocess
import sys
import tempfile
import time

import qo
from qo.client import Client, connect
from qo.engines.http import HttpEngine
from qo.engines.http.client import address_of
from qo.errors import StorageError
from qo.ids import new_id
from qo.model import NewTask, Status
from qo.worker import Worker, WorkerSettings

TASKS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 50_000
PORT = 8799

app = qo.App("memory://")


@app.task
async def nothing() -> None: ...


async def fill(client: Client) -> float:
    tasks = [NewTask(id=new_id(), queue="default", type="nothing", payload=b"{}") for _ in range(TASKS)]
    began = time.perf_counter()
    await client.submit_many(tasks)
    return TASKS / (time.perf_counter() - began)


async def drain(client: Client) -> float:
    """From the first claim to the last settlement, as the store counts it."""
    worker = Worker(client, app.registry, WorkerSettings(concurrency=100, poll=0.1))
    began = time.perf_counter()
    running = asyncio.create_task(worker.run())
    while True:
        await asyncio.sleep(0.05)
        if worker.completed >= TASKS:
            break
    took = time.perf_counter() - began
    worker.stop()
    await running
    done = sum(n for lane, n in (await client.engine.count()).items() if lane.status is Status.COMPLETED)
    assert done == TASKS, done
    return TASKS / took


async def in_process(folder: str) -> None:
    async with connect(f"sqlite:///{folder}/direct.db") as client:
        submitted, worked = await fill(client), await drain(client)
    print(f"in process   submit {submitted:8,.0f}/s   worker {worked:8,.0f}/s")


async def over_http(folder: str) -> None:
    place = ["--url", f"sqlite:///{folder}/served.db", "--port", str(PORT)]
    server = subprocess.Popen([sys.executable, "-m", "qo", "serve", *place, "--log-level", "error"])  # noqa: ASYNC220
    try:
        async with Client(HttpEngine(address_of(f"http://127.0.0.1:{PORT}"))) as client:
            for _ in range(20):
                try:
                    await client.engine.count()
                    break
                except StorageError:
                    continue
            submitted, worked = await fill(client), await drain(client)
    finally:
        server.kill()
        server.wait()
    print(f"over http    submit {submitted:8,.0f}/s   worker {worked:8,.0f}/s")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(in_process(place))
        asyncio.run(over_http(place))
