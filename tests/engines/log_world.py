"""A simulated world around one log: processes that race, lose requests, sleep past garbage collection, or die.

Everything that happens follows from the seed: time is simulated, and random numbers are drawn from the seed.
"""

import asyncio
import os
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

import pytest
from msgspec.structs import replace

from qo.bucket import Blob
from qo.engine import Engine
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine, SubmitMode
from qo.errors import OutcomeUnknown, StorageError
from qo.model import UNFINISHED, Filter, NewTask, Status, Task, complete, expire, release
from qo.testing.faults import Faults, FaultyBucket
from qo.testing.samples import claim, new
from tests.conditions import delay
from tests.engines.log_checker import check_log
from tests.engines.log_history import RecordingBucket, check_history

T = TypeVar("T")
START = 1_800_000_000.0
LEASE = 8.0
TRUST, MIN_RECORD_AGE = 10.0, 25.0
OPTIONS = LogOptions(block_size=4, image_threshold=1, min_record_age=MIN_RECORD_AGE, trust=TRUST)
COLD = replace(
    OPTIONS, segment_size=3, segment_span=8, hot_tasks=2, kept_tasks=1, thaw_time=0.0, cold_age=5.0
)  # most tasks are in segments


class DigitsOfThread(deque[str]):
    """Random digits for the ids of one thread. The others draw fresh ones."""

    def __init__(self, thread: int) -> None:
        super().__init__()
        self._thread = thread

    def popleft(self) -> str:
        if threading.get_ident() != self._thread:
            raise IndexError
        return super().popleft()

    def extend(self, digits: Iterable[str], /) -> None:
        if threading.get_ident() == self._thread:
            super().extend(digits)


@contextmanager
def seeded(seed: int) -> Iterator[random.Random]:
    """Draw the ids and the jitter of qo in this thread from a seed. Threads of other tests draw as before."""
    dice, thread, urandom = random.Random(seed), threading.get_ident(), os.urandom

    def random_bytes(size: int) -> bytes:
        return dice.randbytes(size) if threading.get_ident() == thread else urandom(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", random_bytes)
        patch.setattr("random._urandom", random_bytes)
        patch.setattr("qo.ids._random_digits", DigitsOfThread(thread))
        yield dice


class SimulatedLine:
    """The connection of one process to the store, and the clocks of its machine.

    While the machine sleeps, its requests wait: either they leave when it wakes, and its clocks have gone on; or its
    clocks stood still, and its connections are dead: responses are lost, and the next request fails.
    """

    def __init__(self, store: RecordingBucket, dice: random.Random) -> None:
        self._store, self._dice = store, dice
        self._awake = asyncio.Event()
        self._awake.set()
        self._is_frozen = self.is_cut = self.is_dead = False
        self._slept, self._since = 0.0, 0.0

    def clock(self) -> float:
        """Seconds since the machine was started, as the machine sees them."""
        now = asyncio.get_running_loop().time()
        return (self._since if self._is_frozen else now) - self._slept

    def wall(self) -> float:
        return START + self.clock()

    def fall_asleep(self, *, is_frozen: bool) -> None:
        self._awake.clear()
        self._is_frozen, self._since = is_frozen, asyncio.get_running_loop().time()

    def wake(self) -> None:
        if self._is_frozen:
            self._slept += asyncio.get_running_loop().time() - self._since
            self.is_cut = True
        self._is_frozen = False
        self._awake.set()

    async def _travel(self) -> bool:
        """Returns whether the connection broke meanwhile."""
        await delay(self._dice.uniform(0.005, 0.04))
        is_broken = False
        while not self._awake.is_set():
            is_broken = is_broken or self._is_frozen
            await self._awake.wait()
        return is_broken or self.is_dead

    async def _request(self, request: Callable[[], Awaitable[T]], error: type[StorageError]) -> T:
        if self.is_dead:
            raise StorageError("the process is dead")
        if self.is_cut:
            self.is_cut = False
            raise error("the connection is dead")
        if await self._travel():
            raise error("the connection broke")
        answer = await request()
        if await self._travel():
            raise error("the response was lost")
        return answer

    async def get(self, key: str) -> Blob | None:
        return await self._request(lambda: self._store.get(key), StorageError)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await self._request(lambda: self._store.put(key, data, expected=expected), OutcomeUnknown)

    async def delete(self, key: str) -> None:
        await self._request(lambda: self._store.delete(key), OutcomeUnknown)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        async def listed() -> list[str]:
            return [key async for key in self._store.keys(prefix, after=after)]

        for key in await self._request(listed, StorageError):
            yield key

    async def versions(self, key: str) -> list[Blob]:
        return await self._request(lambda: self._store.versions(key), StorageError)

    def now(self) -> float:
        return self._store.now()


class Held(NamedTuple):
    worker: str
    attempt: int
    until: float


class World:
    """The store, and what its processes were told."""

    def __init__(self, dice: random.Random, shards: int = 1, options: LogOptions = OPTIONS) -> None:
        self.dice, self.options = dice, replace(options, shard_count=shards)
        self.store = RecordingBucket(lambda: START + asyncio.get_running_loop().time())
        self.added: set[str] = set()
        self.submitted: set[str] = set()  # through the inbox: other processes see them later
        self.completed: set[str] = set()
        self._held: dict[str, Held] = {}
        self._attempts: set[tuple[str, int]] = set()
        self._number = 0

    def new_tasks(self) -> list[NewTask]:
        tasks = []
        for _ in range(self.dice.randint(1, 3)):
            self._number += 1
            tasks.append(
                new(self._number, type=self.dice.choice("tu"), priority=self.dice.choice((3, 6)), max_retries=999)
            )
        return tasks

    def claimed(self, worker: str, task: Task) -> None:
        """The overlap meter: no two processes hold one task at the same time, and no attempt is handed out twice."""
        assert task.lease_expires_at is not None
        assert (task.id, task.attempt) not in self._attempts, f"{task.id} was handed out twice as {task.attempt}"
        self._attempts.add((task.id, task.attempt))
        if task.lease_expires_at <= self.store.now():
            return  # the worker slept before it got the answer
        before = self._held.get(task.id)
        assert before is None or before.until <= task.updated_at, f"{task.id} is held by {before} and {worker}"
        assert task.id not in self.completed, f"{task.id} was claimed after its completion"
        self._held[task.id] = Held(worker, task.attempt, task.lease_expires_at)

    def settled(self, task: Task) -> None:
        held = self._held.get(task.id)
        if held is not None and held.attempt == task.attempt:
            self._held[task.id] = held._replace(until=0.0)

    def finished(self, task: Task) -> None:
        assert task.id not in self.completed, f"{task.id} was completed twice"
        self.completed.add(task.id)


class Process:
    """An engine that does what workers, clients and monitors do, in random order."""

    def __init__(
        self, world: World, name: str, *, submit: SubmitMode = SubmitMode.DIRECT, repairs: float = 0.05
    ) -> None:
        self.world, self.name, self._repairs, self.submit = world, name, repairs, submit
        self.dice = random.Random(world.dice.random())
        self._own: list[str] = []
        self.line = SimulatedLine(world.store, self.dice)
        faults = Faults(
            self.dice.randrange(2**32), lost_request=0.03, lost_response=0.05, late=0.03, refused=0.03, slow=0.05
        )
        self.bucket = FaultyBucket(self.line, faults)
        self.engine: Engine = ReplicatedLogEngine(
            self.bucket,
            replace(world.options, submit=submit),
            elapsed=self.line.clock,
            wall=self.line.wall,
        )

    async def run(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        acts = [self._add, self._work, self._work, self._read, self._expire]
        if self.submit is SubmitMode.INBOX:
            acts = [self._add, self._read_own]
        while loop.time() < until and not self.line.is_dead:
            await delay(self.dice.expovariate(1.0))
            act = self._repair if self.dice.random() < self._repairs else self.dice.choice(acts)
            with suppress(StorageError):
                await act()

    async def close(self) -> None:
        self.line.wake()
        with suppress(StorageError):
            await self.engine.close()
        self.line.is_dead = self.line.is_cut = False
        await self.bucket.settle()

    async def _add(self) -> None:
        tasks = self.world.new_tasks()
        told = self.world.submitted if self.submit is SubmitMode.INBOX else self.world.added
        try:
            answers = await self.engine.add(tasks)
            assert all(answer.new for answer in answers), answers
        except OutcomeUnknown:
            if self.dice.random() < 0.5 or self.submit is SubmitMode.INBOX:
                raise
            await self.engine.add(tasks)  # new or not: both are right
        told |= {task.id for task in tasks}
        self._own += [task.id for task in tasks]

    async def _work(self) -> None:
        tasks = await claim(self.engine, limit=self.dice.randint(1, 4), lease=LEASE, worker_id=self.name)
        for task in tasks:
            self.world.claimed(self.name, task)
        await delay(self.dice.expovariate(1.0))
        for task in tasks:
            is_done = self.dice.random() < 0.7
            change = complete(task) if is_done else release(task)
            self.world.settled(task)  # from here on it may be given up, whatever the answer is
            if (await self.engine.apply([change])) == [True] and is_done:
                self.world.finished(task)

    async def _read(self) -> None:
        """Everything acknowledged before the read is seen."""
        known = sorted(self.world.added)
        if known:
            expected = self.dice.sample(known, min(3, len(known)))
            done = [task_id in self.world.completed for task_id in expected]
            for task_id, was_done, task in zip(expected, done, await self.engine.get(expected), strict=True):
                assert task is not None, f"{self.name} does not see {task_id}"
                assert not was_done or task.status is Status.COMPLETED, f"{self.name} sees an old {task}"

    async def _read_own(self) -> None:
        if self._own and self.dice.random() < 0.1:
            for task in await self.engine.get(self._own[-1:]):
                assert task is not None, f"{self.name} does not see its own {self._own[-1]}"

    async def _expire(self) -> None:
        lost = await self.engine.find(Filter(expired_for=0.0), limit=20)
        await self.engine.apply([expire(task, random=0.5, grace=0.0) for task in lost])

    async def _repair(self) -> None:
        await self.engine.repair()


async def live(dice: random.Random, *, seconds: float = 100.0, shards: int = 1, options: LogOptions = OPTIONS) -> World:
    """Run the processes, with sleepers and deaths, then finish the tasks and check what is stored."""
    world = World(dice, shards, options)
    processes = [Process(world, f"worker {n}") for n in range(3)]
    processes += [Process(world, "compactor", repairs=0.5), Process(world, "producer", submit=SubmitMode.INBOX)]
    running = [asyncio.create_task(process.run(seconds)) for process in processes]
    troubles = asyncio.create_task(_trouble(world, processes, running, seconds))
    await asyncio.gather(troubles)
    for process in processes:
        process.line.wake()
    await asyncio.gather(*running)
    for process in processes:
        await process.close()
    await _finish(world)
    violations = check_log(world.store.objects()) + check_history(world.store.changes)
    assert not violations, violations[:10]
    return world


async def _trouble(world: World, processes: list[Process], running: list[asyncio.Task[None]], seconds: float) -> None:
    """Let processes sleep, often past garbage collection, and replace one that dies."""
    loop = asyncio.get_running_loop()
    while loop.time() < seconds:
        await delay(world.dice.expovariate(1 / 6.0))
        process = world.dice.choice(processes)
        if world.dice.random() < 0.2:
            process.line.is_dead = True
            process.line.wake()
            fresh = Process(world, f"{process.name}'", submit=process.submit)
            processes.append(fresh)
            running.append(asyncio.create_task(fresh.run(seconds)))
            continue
        process.line.fall_asleep(is_frozen=world.dice.random() < 0.3)
        await delay(world.dice.choice((2.0, 1.5 * TRUST, 2.5 * MIN_RECORD_AGE)))
        process.line.wake()


async def _finish(world: World) -> None:
    """Complete the remaining tasks. Then each acknowledged task was completed once."""
    engine = ReplicatedLogEngine(world.store, world.options, elapsed=_loop_time, wall=_loop_time)
    await engine.repair()
    await delay(2 * LEASE)
    while await engine.find(Filter(statuses=tuple(UNFINISHED)), limit=1):
        lost = await engine.find(Filter(expired_for=0.0), limit=500)
        await engine.apply([expire(task, random=0.5, grace=0.0) for task in lost])
        await delay(2 * LEASE)
        await engine.apply([complete(task) for task in await claim(engine, limit=500)])
    for task_id in sorted(world.added | world.submitted):
        ends = [event for event in await engine.history(task_id) if event.status is Status.COMPLETED]
        assert (task_id, len(ends)) == (task_id, 1)
    await engine.close()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
