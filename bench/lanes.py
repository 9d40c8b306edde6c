"""What a claim costs with 10 and with 10,000 types of waiting tasks: `python -m bench.lanes [URL...]`.

The queue holds 20,000 tasks each time, spread over so many types. A claim is timed for a worker that takes every type and
for one that lists three, and so are a count and a page of the listing. Figures are the best of 30 in milliseconds; the last
column is 10,000 types against 10, measured in turns so that other load meets both. Without a URL: the stores that need no
server. A Redis or Postgres is given by its URL, and is written to under a prefix or schema of its own.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines import open_engine
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.one_object import OneObjectEngine
from qo.engines.sqlite_object import SqliteObjectEngine
from qo.ids import new_id, new_token
from qo.model import ClaimRequest, Filter, NewTask

TASKS = 20_000
BATCH = 1000
REPEATS = 30
FEW, MANY = 10, 10_000
LISTED = ("t1", "t5", "t9")
LAYOUTS: dict[str, Callable[[], Engine]] = {
    "layout tasks": lambda: ObjectPerTaskEngine(MemoryBucket()),
    "layout one": lambda: OneObjectEngine(MemoryBucket()),
    "layout sqlite": lambda: SqliteObjectEngine(MemoryBucket()),
}


async def fill(engine: Engine, types: int) -> None:
    tasks = [
        NewTask(id=new_id(), queue="default", type=f"t{n % types}", payload=b"{}", priority=(0, 6, 9)[n % 3])
        for n in range(TASKS)
    ]
    tasks[-len(LISTED) * REPEATS :] = [
        NewTask(id=new_id(), queue="default", type=type_, payload=b"{}") for type_ in LISTED for _ in range(REPEATS)
    ]
    for start in range(0, TASKS, BATCH):
        await engine.add(tasks[start : start + BATCH])


async def timed(calls: Sequence[Callable[[], Awaitable[object]]], repeats: int = REPEATS) -> list[float]:
    """Milliseconds of the quickest call of each: other programs only ever make it slower. They take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        await call()  # the first may have to learn what there is
    for _ in range(repeats):
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            await call()
            taken.append(1000 * (time.perf_counter() - began))
    return [min(taken) for taken in times]


def claiming(engine: Engine, limit: int, types: tuple[str, ...] = ()) -> Callable[[], Awaitable[object]]:
    async def claim() -> object:
        request = ClaimRequest(worker_id="bench", lease_id=new_token(), types=types, limit=limit, lease=3600.0)
        claimed = await engine.claim(request)
        assert len(claimed) == limit, (len(claimed), limit)
        return claimed

    return claim


async def measure(make: Callable[[int], Engine]) -> dict[str, list[float]]:
    engines = [make(FEW), make(MANY)]
    filled: list[float] = []
    for engine, types in zip(engines, (FEW, MANY), strict=True):
        await engine.open()
        began = time.perf_counter()
        await fill(engine, types)
        filled.append(1000 * (time.perf_counter() - began))
    try:
        return {
            "submit 20,000": filled,
            "claim 1, 3 types": await timed([claiming(engine, 1, LISTED) for engine in engines]),
            "claim 1": await timed([claiming(engine, 1) for engine in engines]),
            "claim 32": await timed([claiming(engine, 32) for engine in engines]),
            "count": await timed([engine.count for engine in engines], 5),
            "list 50": await timed([partial(engine.find, Filter(), limit=50) for engine in engines], 5),
        }
    finally:
        for engine in engines:
            await engine.close()


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
    with tempfile.TemporaryDirectory() as folder:
        for name, make in stores(sys.argv[1:], Path(folder)).items():
            figures = asyncio.run(measure(make))
            print(f"\n{name:16} {FEW:>10,} types {MANY:>10,} types")
            for what, (few, many) in figures.items():
                print(f"{what:16} {few:10.2f} ms    {many:10.2f} ms  {many / few:8.1f} x", flush=True)


if __name__ == "__main__":
    main()
