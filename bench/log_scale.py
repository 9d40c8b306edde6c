"""64 workers on a log of 1, 4, 16 and 64 shards: `python -m bench.log_scale`, or `--workers 16 --shards 4 --claim 32`.

The engine is the real one, in simulated time: a PUT takes 28 ms in the median and 75 ms at the 99th percentile, a GET or LIST 25 and
67 ms (log-normal), and one request in a hundred is answered with 503. Processor time is not counted, so the figures say what the store
and the races between workers allow. Each worker claims, and completes the tasks of a claim at once, while the next claim is under way.
The queue is full at the beginning. The figures are those of the time between a tenth and seven tenths of the completions.
"""

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from qo.bucket import Blob
from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine, SubmitMode
from qo.errors import Conflict, OutcomeUnknown, StorageError
from qo.ids import new_id, new_token
from qo.model import ClaimRequest, NewTask, Task, complete
from qo.testing.clock import simulate

T = TypeVar("T")

START = 1_800_000_000.0  # the store's time when a simulation begins
WRITING, READING = 0.028, 0.025  # seconds in the median
SPREAD = 0.4236  # of the logarithm: 75 / 28 at the 99th percentile
ARRIVAL = 0.7  # the part of a request's time after which the store has decided it
BUSY = 0.01  # of the requests are refused
PRICES = {"put": 5.0, "list": 5.0, "get": 0.4, "delete": 0.0}  # dollars a million requests: S3 Standard
PUT_LIMIT = 3_500  # a second and prefix of S3
FIRST, LAST = 0.1, 0.7  # of the completions
BATCH = 2_000


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class ScaleStore:
    """The bucket, and what it has counted."""

    def __init__(self, seed: int) -> None:
        self.bucket = MemoryBucket(lambda: START + loop_time())
        self.requests: Counter[str] = Counter()
        self.dice = random.Random(seed)
        self.is_fast = True  # while the queue is filled


class DistantBucket:
    """The connection of one process to the store."""

    def __init__(self, store: ScaleStore) -> None:
        self._store, self.now = store, store.bucket.now

    async def _ask(self, kind: str, median: float, request: Callable[[], Awaitable[T]]) -> T:
        if self._store.is_fast:
            return await request()
        duration = median * self._store.dice.lognormvariate(0.0, SPREAD)
        await asyncio.sleep(ARRIVAL * duration)
        if self._store.dice.random() < BUSY:
            self._store.requests["503"] += 1
            await asyncio.sleep((1 - ARRIVAL) * duration)
            raise StorageError("503 Slow Down")
        self._store.requests[kind] += 1
        try:
            return await request()
        except Conflict:
            self._store.requests["conflict"] += 1
            raise
        finally:
            await asyncio.sleep((1 - ARRIVAL) * duration)

    async def get(self, key: str) -> Blob | None:
        return await self._ask("get", READING, lambda: self._store.bucket.get(key))

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await self._ask("put", WRITING, lambda: self._store.bucket.put(key, data, expected=expected))

    async def delete(self, key: str) -> None:
        await self._ask("delete", WRITING, lambda: self._store.bucket.delete(key))

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        async def listed() -> list[str]:
            return [key async for key in self._store.bucket.keys(prefix, after=after)]

        for key in await self._ask("list", READING, listed):
            yield key

    async def versions(self, key: str) -> list[Blob]:
        return await self._ask("get", READING, lambda: self._store.bucket.versions(key))


class Moment(NamedTuple):
    at: float
    completed: int
    requests: Counter[str]


class Race:
    """The workers of one run."""

    def __init__(self, store: ScaleStore, options: argparse.Namespace, shards: int, tasks: int) -> None:
        self._store, self._options, self._shards, self._tasks = store, options, shards, tasks
        self._completed: set[str] = set()
        self.first: Moment | None = None
        self.last: Moment | None = None
        self.longest_wait = 0.0  # seconds for the answer to a claim or a settlement
        self._is_over = asyncio.Event()

    def engine(self) -> Engine:
        return ReplicatedLogEngine(
            DistantBucket(self._store),
            LogOptions(shard_count=self._shards, submit=SubmitMode.DIRECT),
            elapsed=loop_time,
            wall=lambda: START + loop_time(),
        )

    async def fill(self) -> None:
        engine = self.engine()
        for first in range(0, self._tasks, BATCH):
            size = min(BATCH, self._tasks - first)
            await engine.add([NewTask(id=new_id(), queue="q", type="t", payload=b"x" * 100) for _ in range(size)])
        await engine.close()

    async def run(self) -> None:
        engines = [self.engine() for _ in range(self._options.workers)]
        for _ in range(4):  # until all know each other
            nothing = ClaimRequest(worker_id="w", lease_id=new_token(), limit=0)
            await asyncio.gather(*(self._timed(partial(engine.claim, nothing)) for engine in engines))
            await asyncio.sleep(1.5)
        workers = [asyncio.create_task(self._work(engine, f"w{n}")) for n, engine in enumerate(engines)]
        over = asyncio.create_task(self._is_over.wait())
        done, _ = await asyncio.wait([over, *workers], return_when=asyncio.FIRST_COMPLETED)
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
        if over not in done:
            raise RuntimeError(f"a worker ended: {[task.exception() for task in done]}")
        self._store.is_fast = True
        for engine in engines:
            await engine.close()

    async def _work(self, engine: Engine, name: str) -> None:
        settling: set[asyncio.Task[None]] = set()
        while True:
            request = ClaimRequest(worker_id=name, lease_id=new_token(), limit=self._options.claim)
            tasks = await self._timed(partial(self._claim, engine, request, [False]))
            if not tasks:
                await engine.wait(request, 5.0)
            elif len(settling) > 1:
                await asyncio.wait(settling, return_when=asyncio.FIRST_COMPLETED)
            settling = {task for task in settling if not task.done()}
            settling.add(asyncio.create_task(self._settle(engine, tasks)))

    async def _claim(self, engine: Engine, request: ClaimRequest, is_repeat: list[bool]) -> list[Task]:
        again, is_repeat[0] = is_repeat[0], True
        return await engine.claim(replace(request, is_repeat=again))

    async def _settle(self, engine: Engine, tasks: list[Task]) -> None:
        if tasks:
            answers = await self._timed(lambda: engine.apply([complete(task) for task in tasks]))
            self._note(task.id for task, is_done in zip(tasks, answers, strict=True) if is_done)

    async def _timed(self, call: Callable[[], Awaitable[T]]) -> T:
        began = loop_time()
        while True:  # as a worker does
            try:
                answer = await call()
            except (StorageError, OutcomeUnknown):
                await asyncio.sleep(0.1)
            else:
                self.longest_wait = max(self.longest_wait, loop_time() - began)
                return answer

    def _note(self, ids: Iterable[str]) -> None:
        self._completed.update(ids)
        moment = Moment(loop_time(), len(self._completed), self._store.requests.copy())
        if self.first is None and moment.completed >= FIRST * self._tasks:
            self.first = moment
            self.longest_wait = 0.0
        if self.last is None and moment.completed >= LAST * self._tasks:
            self.last = moment
            self._is_over.set()


async def measure(options: argparse.Namespace, shards: int, seed: int) -> str:
    store = ScaleStore(seed)
    race = Race(store, options, shards, options.tasks * (1 + shards // 2))
    await race.fill()
    store.is_fast = False
    await race.run()
    first, last = race.first, race.last
    assert first is not None
    assert last is not None
    tasks, seconds = last.completed - first.completed, last.at - first.at
    made = last.requests - first.requests
    requests = sum(made[kind] for kind in PRICES)
    dollars = sum(made[kind] * price for kind, price in PRICES.items()) / tasks
    puts = made["put"] / seconds
    commits = made["put"] - made["conflict"]
    allowed = PUT_LIMIT * tasks / made["put"]
    return (
        f"| {shards} | {tasks / seconds:,.0f} | {made['conflict'] / max(1, commits):.2f} | {requests / tasks:.3f} | {dollars:.2f} |"
        f" {race.longest_wait:.1f} s | {puts:,.0f} | {allowed:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--shards", type=int, action="append", help="[default: 1, 4, 16 and 64]")
    parser.add_argument("--claim", type=int, default=100, help="tasks of one claim")
    parser.add_argument("--tasks", type=int, default=20_000, help="of one shard; N shards get 1 + N/2 times as many")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(
        "| shards | tasks/s | lost races per commit | requests per task | $ per million tasks | longest wait | PUT/s | tasks/s at 3,500 PUT/s |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for shards in options.shards or (1, 4, 16, 64):
        print(simulate(measure(options, shards, options.seed), options.seed), flush=True)


if __name__ == "__main__":
    main()
