"""How fast is a layout in a bucket? `python -m bench.buckets --layout sqlite --callers 100 --depth 100 --depth 10000`

Callers at once, each submitting a task, taking one and completing it, over and over, against an S3 server of our own
that takes 28 ms for a PUT and 25 ms for a GET or LIST, in a process of its own (`--bucket memory`: in this one, and no
HTTP). Tasks a second through their whole lives, this process's CPU and requests to the store for each. What is shared
by all callers limits it: three writes one after the other for every hundred tasks are 84 ms, so 1,190 tasks/s.

`--jqueue E/jqueue/bin/python` (from `sh bench/setup_envs.sh E jqueue`) lets jqueue's broker do the same, and tells how many
times as fast each layout was.
"""

import argparse
import asyncio
import multiprocessing
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from qo.bucket import Blob, Bucket
from qo.buckets import open_bucket
from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.client import Client
from qo.engine import Engine
from qo.engines import layouts
from qo.testing.s3_server import Latency, S3Server

PUT, GET = 0.028, 0.025  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", action="append", help="tasks, one or sqlite, with its options: 'sqlite&mode=local'")
    parser.add_argument("--callers", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--depth", type=int, action="append", help="tasks that wait all the time")
    parser.add_argument("--bucket", choices=["s3", "memory"], default="s3")
    parser.add_argument("--put", type=float, default=PUT)
    parser.add_argument("--get", type=float, default=GET)
    parser.add_argument("--profile", action="store_true", help="show where this process spends its time")
    parser.add_argument("--jqueue", metavar="PYTHON", help="also measure jqueue, with this Python")
    asked = parser.parse_args()
    for depth in asked.depth or [0]:
        rates = {}
        for layout in asked.layout or ["tasks", "one", "sqlite"]:
            with server(asked) as url:
                rates[layout] = asyncio.run(measure(layout, depth, url, asked))
        if asked.jqueue:
            with server(asked) as url:
                compare(rates, measure_jqueue(depth, url, asked))


async def measure(layout: str, depth: int, url: str, asked: argparse.Namespace) -> float:
    """Tasks a second."""
    async with opened(layout, url, asked) as (queue, requests):
        waiting = [queue.new_task("t", b"{}") for _ in range(depth)]
        for start in range(0, depth, 1000):
            await queue.engine.add(waiting[start : start + 1000])
        requests.clear()
        profiler = profiling() if asked.profile else None
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(lives(queue, asked.tasks // asked.callers) for _ in range(asked.callers)))
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        if profiler:
            profiler()
        done = sum(n for lane, n in (await queue.engine.count()).items() if lane.status == "completed")
    assert done == asked.tasks // asked.callers * asked.callers, done
    each = "  ".join(f"{kind} {number / done:.3f}" for kind, number in sorted(requests.items()))
    show(layout, depth, asked, done / took, cpu / done, f"  requests a task: {each}")
    return done / took


def show(name: str, depth: int, asked: argparse.Namespace, rate: float, cpu: float, more: str = "") -> None:
    print(
        f"{name:22} {asked.callers:4} callers  depth {depth:6,}  {rate:7,.0f} tasks/s  {1e6 * cpu:5.0f} us of CPU{more}",
        flush=True,
    )


def measure_jqueue(depth: int, url: str, asked: argparse.Namespace) -> float:
    """The same by jqueue, in a process and an environment of its own."""
    place = urlsplit(url)
    (endpoint,) = parse_qs(place.query)["endpoint"]
    script = Path(__file__).with_name("jqueue_lives.py")
    numbers = [str(number) for number in (asked.callers, asked.tasks, depth)]
    command = [asked.jqueue, str(script), endpoint, place.netloc, "any", "any", *numbers]
    rate, cpu = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    show("jqueue", depth, asked, float(rate), float(cpu))
    return float(rate)


def compare(rates: dict[str, float], jqueue: float) -> None:
    print("times jqueue:", ", ".join(f"{layout} {rate / jqueue:.1f}" for layout, rate in rates.items()))


async def lives(client: Client, number: int) -> None:
    for _ in range(number):
        await client.enqueue("t", {"n": 1})
        tasks = []
        while not tasks:
            tasks = await client.dequeue(wait=5)
        await client.ack(tasks[0], None)


@asynccontextmanager
async def opened(layout: str, url: str, asked: argparse.Namespace) -> AsyncIterator[tuple[Client, Counter[str]]]:
    bucket = CountingBucket(open_bucket(url) if url else Far(MemoryBucket(), asked))
    name, _, rest = layout.partition("&")
    _, options, _ = layouts.parse(f"s3://b?layout={name}&{rest}", {})
    engine: Engine = layouts._LAYOUTS[name](bucket, options, None)  # noqa: SLF001 - a URL would open a bucket of its own
    async with Client(engine) as client:
        yield client, bucket.requests


def profiling():
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.enable()

    def tell() -> None:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)

    return tell


# --- the store


class Far:
    """As far away as a cloud, without its HTTP."""

    def __init__(self, bucket: Bucket, asked: argparse.Namespace) -> None:
        self._bucket, self._put, self._get = bucket, asked.put, asked.get
        self.now = bucket.now

    async def get(self, key: str) -> Blob | None:
        await asyncio.sleep(self._get)
        return await self._bucket.get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await asyncio.sleep(self._put)
        return await self._bucket.put(key, data, expected=expected)

    async def delete(self, key: str) -> None:
        await asyncio.sleep(self._put)
        await self._bucket.delete(key)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        await asyncio.sleep(self._get)
        async for key in self._bucket.keys(prefix, after=after):
            yield key

    async def versions(self, key: str) -> list[Blob]:
        await asyncio.sleep(self._get)
        return await self._bucket.versions(key)


@contextmanager
def server(asked: argparse.Namespace) -> Iterator[str]:
    """Its bucket's URL; none if there is no server."""
    if asked.bucket == "memory":
        yield ""
        return
    ours, theirs = multiprocessing.Pipe()
    latency = Latency(put=asked.put, get=asked.get, list=asked.get, delete=asked.put)
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, latency), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def serve(told: Connection, latency: Latency) -> None:
    async def run() -> None:
        async with S3Server(latency=latency) as s3:
            told.send(s3.url)
            await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()
