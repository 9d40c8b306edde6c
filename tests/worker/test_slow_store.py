"""A store whose requests take a good part of a lease: slow, but tasks run."""

import asyncio

import pytest

from qo.bucket import Blob
from qo.buckets.memory import MemoryBucket
from qo.client import Client
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.model import Status
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Worker, WorkerSettings
from tests.conditions import delay, until

pytestmark = pytest.mark.timeout(120)


class FarBucket(MemoryBucket):
    """Every read and write takes a while."""

    latency = 0.0

    async def get(self, key: str) -> Blob | None:
        await self._travel()
        return await super().get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await self._travel()
        return await super().put(key, data, expected=expected)

    async def _travel(self) -> None:
        await delay(self.latency)


async def all_completed(client: Client, ids: list[str]) -> bool:
    return all(task and task.status is Status.COMPLETED for task in await client.engine.get(ids))


async def test_tasks_run_although_a_claim_takes_longer_than_a_lease() -> None:
    bucket, ran = FarBucket(), list[int]()

    async def quick(n: int) -> None:
        ran.append(n)

    registry = Registry()
    registry.add(make_handler(quick, type="quick", options=make_options(quick)))
    async with Client(ObjectPerTaskEngine(bucket)) as client, asyncio.timeout(60):
        ids = [(await client.enqueue("quick", {"n": n}, max_retries=0)).id for n in range(3)]
        bucket.latency = 0.3
        worker = Worker(client, registry, WorkerSettings(lease=0.9, concurrency=2, poll=0.1, grace=10.0))
        working = asyncio.create_task(worker.run())
        await until(all_completed, client, ids)
        worker.stop()
        await working
    assert sorted(ran) == list(range(3)), "each once"
