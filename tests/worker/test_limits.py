"""Rates, slots and switches: what a worker may start."""

import asyncio
import threading

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting, StorageError
from qo.model import ClaimRequest, Status, Task
from qo.notes import Controls
from qo.rate_limits import TokenBucket
from qo.tasks import Handler, Registry, make_handler, make_options
from qo.testing import ManualClock
from qo.worker import Worker, WorkerSettings, WorkerStuck
from qo.worker.controls import Limits
from tests.conditions import TIMEOUT, until
from tests.worker.bench import Bench


def test_a_bucket_lets_a_second_of_tasks_start_at_once_then_one_by_one() -> None:
    bucket = TokenBucket(10, now=0.0)
    assert bucket.available(0.0) == 10
    bucket.take(10)
    assert bucket.available(0.0) == 0
    assert bucket.wait() == pytest.approx(0.1)
    assert bucket.available(0.1) == 1
    assert bucket.available(60.0) == 10


def test_a_slow_rate_still_lets_one_start() -> None:
    bucket = TokenBucket(0.5, now=0.0)
    assert bucket.available(0.0) == 1
    bucket.take(1)
    assert (bucket.available(1.0), bucket.available(2.0)) == (0, 1)


def test_limits_hold_by_type_and_for_the_whole_worker() -> None:
    clock = ManualClock()

    async def a() -> None: ...

    async def b() -> None: ...

    handlers = {
        "a": make_handler(a, type="a", options=make_options(a, rate_limit=2, concurrency=3)),
        "b": make_handler(b, type="b", options=make_options(b)),
    }
    limits = Limits(clock)
    limits.apply_controls(Controls(rate_limit=5), handlers)
    assert limits.total(100) == 5
    assert limits.per_type_limits(handlers, {}) == {"a": 2}
    for _ in range(2):
        limits.started("a")
    assert (limits.total(100), limits.per_type_limits(handlers, {"a": 2})) == (3, {"a": 0})
    clock.advance(10)
    assert limits.per_type_limits(handlers, {"a": 2}) == {"a": 1}
    limits.apply_controls(Controls(rate_limits={"a": 0.0, "b": 1.0}), handlers)  # the switch goes before the code
    assert (limits.total(100), limits.per_type_limits(handlers, {})) == (100, {"a": 3, "b": 1})


async def test_a_type_runs_no_more_than_its_concurrency_at_once(bench: Bench) -> None:
    lock, running, most = threading.Lock(), [0], [0]
    pair = threading.Barrier(2)

    async def narrow() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        await asyncio.to_thread(pair.wait, 60)
        with lock:
            running[0] -= 1

    bench.handle(narrow, concurrency=2)
    tasks = await bench.run_all([await bench.submit("narrow") for _ in range(12)], concurrency=10)
    assert {task.status for task in tasks} == {Status.COMPLETED}
    assert most[0] == 2


async def test_a_worker_runs_no_more_than_its_concurrency_over_all_executors(bench: Bench) -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def enter(change: int) -> None:
        with lock:
            running[0] += change
            most[0] = max(most[0], running[0])

    three = threading.Barrier(3)

    async def aside() -> None:
        enter(1)
        await asyncio.to_thread(three.wait, 60)
        enter(-1)

    def inside() -> None:
        enter(1)
        three.wait(60)
        enter(-1)

    bench.handle(aside)
    bench.handle(inside)
    ids = [await bench.submit(kind) for _ in range(9) for kind in ("aside", "inside")]
    await bench.run_all(ids, concurrency=3)
    assert most[0] == 3


async def test_a_rate_limit_spreads_tasks_over_time(bench: Bench) -> None:
    async def limited() -> None: ...

    bench.handle(limited, rate_limit=20)
    tasks = await bench.run_all([await bench.submit("limited") for _ in range(30)])
    starts = sorted(task.started_at or 0 for task in tasks)
    assert starts[-1] - starts[0] >= 0.4  # 20 at once, then 10 more at 20 a second


async def test_pausing_and_resuming_reach_a_running_worker(bench: Bench) -> None:
    async def fine() -> None: ...

    async def other() -> None: ...

    bench.handle(fine)
    bench.handle(other)
    await bench.client.controls.pause(types=["fine"])
    paused = await bench.submit("fine")
    async with bench.working():
        await bench.ended(await bench.submit("other"))
        waiting = await bench.client.get(paused)
        assert waiting is not None
        assert waiting.status is Status.PENDING
        await bench.client.controls.resume()
        assert (await bench.ended(paused)).status is Status.COMPLETED
        await bench.client.controls.pause()


async def test_a_paused_queue_is_left_alone(bench: Bench) -> None:
    async def fine() -> None: ...

    bench.handle(fine)
    await bench.client.controls.pause(queues=["night"])
    paused = await bench.submit("fine", queue="night")
    async with bench.working():
        await bench.ended(await bench.submit("fine", queue="day"))
    task = await bench.client.get(paused)
    assert task is not None
    assert task.status is Status.PENDING


class _Away:
    """An engine whose claims fail for a while, or never come back."""

    def __init__(self, engine: object, *, failures: int = 0, hangs: bool = False) -> None:
        self._engine, self.failures, self._hangs = engine, failures, hangs

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def claim(self, request: ClaimRequest) -> list[Task]:
        if self._hangs:
            await asyncio.Event().wait()
        if self.failures:
            self.failures -= 1
            raise StorageError("the disk is on holiday")
        tasks: list[Task] = await self._engine.claim(request)  # type: ignore[attr-defined]
        return tasks


async def test_a_worker_outlives_a_store_that_is_away(bench: Bench) -> None:
    async def fine() -> None: ...

    bench.handle(fine)
    bench.client = Client(_Away(bench.client.engine, failures=2))  # type: ignore[arg-type]
    (task,) = await bench.run_all([await bench.submit("fine")])
    assert task.status is Status.COMPLETED


async def test_a_worker_whose_claims_never_return_gives_up(client: Client) -> None:
    async def fine() -> None: ...

    registry = Registry()
    registry.add(make_handler(fine, type="fine", options=make_options(fine)))
    worker = Worker(Client(_Away(client.engine, hangs=True)), registry, WorkerSettings(stuck_after=0.1))  # type: ignore[arg-type]
    with pytest.raises(WorkerStuck, match="has not answered"):
        await asyncio.wait_for(worker.run(), TIMEOUT)


async def test_a_worker_can_be_narrowed_to_types_it_has(bench: Bench) -> None:
    async def fine() -> None: ...

    bench.handle(fine)
    with pytest.raises(InvalidSetting, match="no handler for nope; handlers exist for: fine"):
        Worker(bench.client, bench.registry, WorkerSettings(types=("nope",)))


class _Unhurried(MemoryEngine):
    """Answers a claim that found nothing once the worker has let go of all its tasks."""

    worker: Worker | None = None

    async def claim(self, request: ClaimRequest) -> list[Task]:
        tasks = await super().claim(request)
        if not tasks and (worker := self.worker) is not None:
            await until(lambda: not worker.status.held)
        return tasks


async def test_a_slot_of_a_type_that_becomes_free_during_a_claim_is_used_at_once() -> None:
    async def single() -> None: ...

    async def other() -> None: ...

    engine = _Unhurried()
    async with Client(engine) as client:
        bench = Bench(client)
        bench.handle(single, concurrency=1)
        bench.handle(other)
        ids = [await bench.submit("single") for _ in range(3)]
        async with bench.working(poll=60.0) as engine.worker:
            for task_id in ids:
                assert (await bench.ended(task_id)).status is Status.COMPLETED


class _CountedClaims(MemoryEngine):
    """Counts the claims after the burst, the tasks that a rate of 100 lets start at once."""

    claimed = claims_after_burst = 0

    async def claim(self, request: ClaimRequest) -> list[Task]:
        self.claims_after_burst += self.claimed >= 100
        tasks = await super().claim(request)
        self.claimed += len(tasks)
        return tasks


async def test_a_type_that_has_used_up_its_rate_continues_with_the_next_tokens() -> None:
    async def limited() -> None: ...

    async def other() -> None: ...

    engine = _CountedClaims()
    async with Client(engine) as client:
        bench = Bench(client)
        bench.handle(limited, rate_limit=100.0)
        bench.handle(other)
        ids = [await bench.submit("limited") for _ in range(200)]  # twice as many as may start at once
        async with bench.working(concurrency=200, poll=60.0):
            for task_id in ids:
                assert (await bench.ended(task_id)).status is Status.COMPLETED
    assert engine.claims_after_burst < 100  # fewer than the tasks beyond the burst: tokens are collected for a claim


def test_a_worker_without_a_free_slot_does_not_wait_for_tokens_that_it_has() -> None:
    clock = ManualClock()
    limits = Limits(clock)
    limits.apply_controls(Controls(rate_limits={"slow": 2.0, "quick": 100.0}), {})
    assert limits.next_tokens(60.0) == 60.0
    for _ in range(100):
        limits.started("quick")
    assert limits.next_tokens(60.0) == pytest.approx(0.1)
    for _ in range(2):
        limits.started("slow")
    clock.advance(0.1)
    assert limits.next_tokens(60.0) == pytest.approx(0.4)


def _limited_by(clock: ManualClock) -> tuple[Limits, dict[str, Handler]]:
    """The limits of a worker with one type of 20 tasks a second, whose tokens are used up."""

    async def limited() -> None: ...

    handlers = {"limited": make_handler(limited, type="limited", options=make_options(limited, rate_limit=20.0))}
    limits = Limits(clock)
    limits.apply_controls(Controls(), handlers)
    for _ in range(20):
        limits.started("limited")
    return limits, handlers


@pytest.mark.parametrize(("took", "wait"), [(0.03, 0.07), (0.06, 0.04), (0.2, 0.001)])
def test_a_type_that_a_request_omits_is_claimed_soon_although_a_token_arrives_during_the_claim(
    took: float, wait: float
) -> None:
    clock = ManualClock()
    limits, handlers = _limited_by(clock)
    assert limits.per_type_limits(handlers, {}) == {"limited": 0}
    clock.advance(took)
    assert limits.next_tokens(60.0) == pytest.approx(wait, abs=1e-6)


def test_a_worker_that_builds_no_request_does_not_wake_for_a_type_that_an_earlier_one_omitted() -> None:
    """It is paused or full, and wakes once at most."""
    clock = ManualClock()
    limits, handlers = _limited_by(clock)
    limits.per_type_limits(handlers, {})
    clock.advance(1.0)
    assert [limits.next_tokens(60.0), limits.next_tokens(60.0)] == [0.001, 60.0]
    for _ in range(20):
        limits.started("limited")
    limits.per_type_limits(handlers, {})
    clock.advance(1.0)
    limits.per_type_limits(handlers, {})  # has tokens again
    assert limits.next_tokens(60.0) == 60.0
