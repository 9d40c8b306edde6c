"""What a claim costs with 10 and with 10,000 types of waiting tasks: `python -m bench.lanes [URL...]`.

Both queues hold 20,000 tasks, spread over the types. A claim is timed for a worker that takes every type and for one that
lists three, and so are a count and a page of the listing. Each call is made on one queue and then on the other, and the
figure is the best in milliseconds; the last column is 10,000 types against 10. Stores that need no server are measured in
processor time of this process, which other programs do not lengthen; a Redis or Postgres, given by its URL, in elapsed
time. It is written to under a prefix or schema of its own.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeAlias

from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines import open_engine
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.one_object import OneObjectEngine
from qo.engines.replicated_log import ReplicatedLogEngine
from qo.engines.sqlite_object import SqliteObjectEngine
from qo.ids import new_id, new_token
from qo.model import ClaimRequest, Filter, NewTask

TASKS = 20_000
BATCH = 1000
REPEATS = 30
SIZES = FEW, MANY = 10, 10_000
LISTED = ("t1", "t5", "t9")


class LastVersionBucket(MemoryBucket):
    """Without former versions: in layout `one` each is megabytes, and new memory costs as much as the claim."""

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        version = await super().put(key, data, expected=expected)
        del self._blobs[key][:-1]
        return version


LAYOUTS: dict[str, Callable[[], Engine]] = {
    "layout tasks": lambda: ObjectPerTaskEngine(LastVersionBucket()),
    "layout one": lambda: OneObjectEngine(LastVersionBucket()),
    "layout sqlite": lambda: SqliteObjectEngine(LastVersionBucket()),
    "layout log": lambda: ReplicatedLogEngine(LastVersionBucket()),
}


def tasks_of(types: int) -> list[NewTask]:
    tasks = [
        NewTask(id=new_id(), queue="default", type=f"t{n % types}", payload=b"{}", priority=(0, 6, 9)[n % 3])
        for n in range(TASKS)
    ]
    tasks[-len(LISTED) * REPEATS :] = [
        NewTask(id=new_id(), queue="default", type=type_, payload=b"{}") for type_ in LISTED for _ in range(REPEATS)
    ]
    return tasks


Call: TypeAlias = Callable[[], Awaitable[object]]
Timer: TypeAlias = Callable[[], float]


async def timed(calls: Sequence[Call], timer: Timer, repeats: int = REPEATS) -> list[float]:
    """Milliseconds, of the quickest of each call: other programs only ever make it slower."""
    best = [float("inf")] * len(calls)
    for nth in range(repeats + 1):
        for place, call in enumerate(calls):
            began = timer()
            await call()
            if nth:  # the first may have to learn what there is
                best[place] = min(best[place], 1000 * (timer() - began))
    return best


async def filled(engines: Sequence[Engine], timer: Timer) -> list[float]:
    """Milliseconds for all batches. One queue gets a batch, then the other."""
    spent = [0.0] * len(engines)
    tasks = [tasks_of(types) for types in SIZES]
    for start in range(0, TASKS, BATCH):
        for place, engine in enumerate(engines):
            began = timer()
            await engine.add(tasks[place][start : start + BATCH])
            spent[place] += 1000 * (timer() - began)
    return spent


def claiming(engine: Engine, limit: int, types: tuple[str, ...] = ()) -> Call:
    async def claim() -> object:
        request = ClaimRequest(worker_id="bench", lease_id=new_token(), types=types, limit=limit, lease=3600.0)
        claimed = await engine.claim(request)
        assert len(claimed) == limit, (len(claimed), limit)
        return claimed

    return claim


async def measure(engines: Sequence[Engine], timer: Timer) -> dict[str, list[float]]:
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.open()
            stack.push_async_callback(engine.close)
        figures = {"submit 20,000": await filled(engines, timer)}
        figures["claim 1, 3 types"] = await timed([claiming(engine, 1, LISTED) for engine in engines], timer)
        for limit in (1, 32, 128):
            figures[f"claim {limit}"] = await timed([claiming(engine, limit) for engine in engines], timer)
        figures["count"] = await timed([engine.count for engine in engines], timer, 5)
        figures["list 50"] = await timed([partial(engine.find, Filter(), limit=50) for engine in engines], timer, 5)
        return figures


def stores(urls: list[str], folder: Path) -> dict[str, Callable[[int], Engine]]:
    if not urls:
        made: dict[str, Callable[[int], Engine]] = {
            "memory": lambda _: open_engine("memory://"),
            "sqlite": lambda types: open_engine(f"sqlite:///{folder}/{types}.db"),
        }
        return made | {name: (lambda _, make=make: make()) for name, make in LAYOUTS.items()}
    mark = new_token()[:6]
    return {
        url.split(":")[0]: lambda types, url=url: open_engine(
            f"{url}?{'prefix' if url.startswith('redis') else 'schema'}=lanes_{mark}_{types}"
        )
        for url in urls
    }


def main() -> None:
    urls = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for name, make in stores(urls, Path(folder)).items():
            timer = time.perf_counter if urls else time.process_time
            figures = asyncio.run(measure([make(types) for types in SIZES], timer))
            print(f"\n{name:16} {FEW:>10,} types {MANY:>10,} types")
            for what, (few, many) in figures.items():
                print(f"{what:16} {few:10.2f} ms    {many:10.2f} ms  {many / few:8.1f} x", flush=True)


if __name__ == "__main__":
    main()
