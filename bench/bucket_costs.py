"""What a task costs on a bucket, counted: requests through its life, and dollars a million.

Nothing is measured: requests are counted in a simulated time in which a PUT or DELETE takes 28 ms and a GET or LIST 25 ms,
so the figures are the same on every machine, those of many workers to a few percent.
Run it with any Python that has qo: python bench/bucket_costs.py
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

from qo.bucket import Blob, Bucket
from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.engine import Engine
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.one_object import CommitMode, OneObjectEngine
from qo.engines.sqlite_object import SqliteObjectEngine
from qo.ids import new_id, new_token
from qo.model import ClaimRequest, NewTask, complete
from qo.testing.clock import simulate

TASKS = 1920
START = 1_800_000_000.0  # the store's time when a simulation begins
WRITING, READING = 0.028, 0.025  # seconds
PRICES = {"put": 5.0, "list": 5.0, "get": 0.4, "delete": 0.0}  # dollars a million requests: S3 Standard
KINDS = ("put", "get", "delete", "list")

LAYOUTS: dict[str, Callable[[Bucket], Engine]] = {
    "tasks": ObjectPerTaskEngine,
    "one": OneObjectEngine,
    "one, direct": lambda bucket: OneObjectEngine(bucket, mode=CommitMode.DIRECT),
    "sqlite": SqliteObjectEngine,
}
CROWDS = {  # callers who submit one task at a time, workers, tasks a claim asks for
    "one caller, one worker taking one at a time": (1, 1, 1),
    "one worker taking 32 at a time": (32, 1, 32),
    "32 workers taking 4 at a time": (32, 32, 4),
}


class FarBucket:
    """As far away as a cloud."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self.now = bucket, bucket.now

    async def get(self, key: str) -> Blob | None:
        await asyncio.sleep(READING)
        return await self._bucket.get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await asyncio.sleep(WRITING)
        return await self._bucket.put(key, data, expected=expected)

    async def delete(self, key: str) -> None:
        await asyncio.sleep(WRITING)
        await self._bucket.delete(key)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        await asyncio.sleep(READING)
        async for key in self._bucket.keys(prefix, after=after):
            yield key

    async def versions(self, key: str) -> list[Blob]:
        return await self._bucket.versions(key)


def simulated() -> float:
    return START + asyncio.get_running_loop().time()


async def lives(layout: Callable[[Bucket], Engine], callers: int, workers: int, batch: int, tasks: int) -> Counter[str]:
    """All requests from the first submission to the last completion. Submitters share a process, workers do not."""
    bucket = CountingBucket(FarBucket(MemoryBucket(simulated)))
    await asyncio.gather(*(submit(producer, tasks // callers) for producer in [layout(bucket)] for _ in range(callers)))
    done = await asyncio.gather(*(work(layout(bucket), f"w{n}", batch) for n in range(workers)))
    if sum(done) != tasks // callers * callers:
        raise RuntimeError(f"{sum(done)} of {tasks} were done")
    return bucket.requests


async def submit(engine: Engine, number: int) -> None:
    for _ in range(number):
        await engine.add([NewTask(id=new_id(), queue="q", type="t", payload=b'{"n":1}')])


async def work(engine: Engine, name: str, batch: int) -> int:
    done = 0
    while tasks := await engine.claim(ClaimRequest(worker_id=name, lease_id=new_token(), limit=batch)):
        done += sum(await engine.apply([complete(task) for task in tasks]))
    await engine.close()
    return done


def dollars(requests: Counter[str], tasks: int) -> float:
    """A million tasks."""
    return sum(PRICES[kind] * requests[kind] / tasks for kind in KINDS)


def main() -> None:
    print("| layout | who | PUT | GET | DELETE | LIST | $ per million tasks |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name, layout in LAYOUTS.items():
        for who, (callers, workers, batch) in CROWDS.items():
            if workers > 1 and name == "one, direct":
                continue  # 32 of them on one object would only wait for each other
            tasks = TASKS if name == "tasks" or workers == 1 else TASKS // 4  # every lost race reads the whole object
            requests = simulate(lives(layout, callers, workers, batch, tasks), seed=1)
            shares = " | ".join(f"{requests[kind] / tasks:.2f}" for kind in KINDS)
            print(f"| `{name}` | {who} | {shares} | {dollars(requests, tasks):.2f} |", flush=True)


if __name__ == "__main__":
    main()
