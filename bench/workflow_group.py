"""A group of 9,999 tasks and their callback, the largest workflow, against 9,999 plain tasks, on one store, in one run.

    python bench/workflow_group.py sqlite:////tmp/bench.db [9999]
    python bench/workflow_group.py "postgresql://...?schema=bench"
    python bench/workflow_group.py redis://127.0.0.1:6379/0

One worker in this process runs handlers that do nothing. For each of the two the time from the first claim to the last
settlement is printed, by the wall clock and by the processor, and the processor time of the submission. On a busy
machine compare processor times; the time of a database server is not part of them.
"""

import asyncio
import sys
import time

import qo
from qo.client import connect
from qo.model import Filter, Status
from qo.tasks import Registry
from qo.worker import Worker, WorkerSettings

app = qo.App("memory://")


@app.task
async def one(n: int) -> int:
    return n


@app.task
async def collect(results: list[int]) -> int:
    return len(results)


async def drain(client: qo.Client, registry: Registry, expected: int) -> tuple[float, float]:
    worker = Worker(client, registry, WorkerSettings(concurrency=100, drain=True))
    began, used = time.perf_counter(), time.process_time()
    await worker.run()
    took = time.perf_counter() - began, time.process_time() - used
    left = await client.list(Filter(statuses=(Status.PENDING, Status.RUNNING)), limit=1)
    assert not left, left
    assert worker.completed == expected, f"{worker.completed} of {expected} completed"
    return took


async def measure(url: str, size: int) -> None:
    async with connect(url) as client:
        figures = {}
        for kind in ("plain", "group", "plain", "group"):
            used = time.process_time()
            if kind == "plain":
                await client.submit_many([one.describe(n) for n in range(size)])
            else:
                flow = qo.group([one.s(n) for n in range(size)], then=collect.s())
                made = await client.workflows.submit("bench", flow.planned)
            submitted = time.process_time() - used
            wall, processor = await drain(client, app.registry, size + (kind == "group"))
            if kind == "group":
                assert await client.workflows.result(made.graph.id, timeout=1) == size
            figures[kind] = wall, processor
            microseconds = 1e6 / size
            print(
                f"{kind:6} {wall * microseconds:7.0f} µs a task, processor {processor * microseconds:7.0f} µs, "
                f"submission {submitted * microseconds:6.0f} µs"
            )
        ratios = [group / plain for group, plain in zip(figures["group"], figures["plain"], strict=True)]
        print(f"ratio  {ratios[0]:.2f} by the wall clock, {ratios[1]:.2f} by the processor")


if __name__ == "__main__":
    asyncio.run(measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9_999))
