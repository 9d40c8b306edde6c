"""Producers of a log that submit through its inbox and directly, while answers are lost: each task runs once."""

import asyncio
from collections import Counter

from qo.engine import Engine
from qo.model import Filter, complete
from qo.testing import Faults, FaultyBucket
from qo.testing.samples import claim, claim_request
from tests.engines.fast_time import pass_time, run
from tests.engines.log_queue import DIRECT, INBOX, Queue

HISTORIES = 2


def test_histories_with_inbox_and_direct_producers(scale: int, seed: int) -> None:
    for number in range(HISTORIES * scale):
        run(history(seed + number))


async def history(seed: int) -> None:
    queue = await Queue().create()
    bucket = FaultyBucket(queue.bucket, Faults(seed, lost_request=0.03, lost_response=0.06, late=0.03, refused=0.03))
    producers = [queue.engine(options, bucket) for options in (INBOX, INBOX, DIRECT)]
    workers = [queue.engine(bucket=bucket) for _ in range(2)]
    tasks = [queue.task() for _ in range(30)]
    done = Counter[str]()

    async def submit(number: int) -> None:
        for task in tasks[number::3]:
            await producers[number].add([task])
            await pass_time(0.2)

    async def drain(worker: Engine) -> None:
        while done.total() < len(tasks):
            for task in await claim(worker, limit=3):
                assert await worker.apply([complete(task)]) == [True]
                done[task.id] += 1
            await worker.wait(claim_request(), 1.0)

    await asyncio.gather(*(submit(number) for number in range(3)), *(drain(worker) for worker in workers))
    assert done == Counter(task.id for task in tasks), f"seed {seed}"
    for engine in (*producers, *workers):
        await engine.close()
    await bucket.settle()
    reader = queue.engine()
    await reader.repair()
    assert len(await reader.find(Filter(), limit=99)) == len(tasks) + 1, f"seed {seed}"
    await reader.close()
