"""The callers of `bench/buckets.py`, each with jqueue instead of qo. Run by it, with the Python of jqueue's environment.

Usage: jqueue_lives.py ENDPOINT BUCKET KEY SECRET CALLERS TASKS DEPTH
"""

import asyncio
import sys
import time

import aioboto3
from jqueue import BrokerQueue
from jqueue.adapters.storage.s3 import S3Storage
from jqueue.core import codec
from jqueue.domain.models import Job, QueueState


async def main(endpoint: str, bucket: str, key: str, secret: str, callers: int, tasks: int, depth: int) -> None:
    session = aioboto3.Session(aws_access_key_id=key, aws_secret_access_key=secret)
    storage = S3Storage(
        bucket=bucket, key="jqueue.json", session=session, region_name="us-east-1", endpoint_url=endpoint
    )
    _, etag = await storage.read()
    waiting = tuple(Job.new("t", b"{}") for _ in range(depth))
    await storage.write(codec.encode(QueueState(jobs=waiting)), if_match=etag)
    async with BrokerQueue(storage) as queue:
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(lives(queue, tasks // callers) for _ in range(callers)))
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"{tasks // callers * callers / took} {cpu / tasks}")


async def lives(queue: BrokerQueue, number: int) -> None:
    for _ in range(number):
        await queue.enqueue("t", b'{"n":1}')
        jobs = []
        while not jobs:
            jobs = await queue.dequeue("t", batch_size=1)
        await queue.ack(jobs[0].id)


if __name__ == "__main__":
    endpoint, bucket, key, secret, *numbers = sys.argv[1:]
    asyncio.run(main(endpoint, bucket, key, secret, *map(int, numbers)))
