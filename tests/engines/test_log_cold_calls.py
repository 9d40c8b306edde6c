"""Every kind of call on tasks that are in cold segments, and what must not be read for it."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from qo.buckets.memory import MemoryBucket
from qo.client import Client
from qo.engine import Engine
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine
from qo.engines.replicated_log.doctor import examine_log
from qo.model import (
    ClaimRequest,
    Filter,
    PendingKind,
    Status,
    Unique,
    cancel,
    complete,
    cursor,
    reschedule,
    run_now,
    set_priority,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_request, new
from tests.engines.cold_queue import DEPTH, OPTIONS, ColdQueue
from tests.engines.fast_time import run
from tests.engines.log_checker import check_bucket

ALL_COLD = replace(OPTIONS, hot_tasks=0, kept_tasks=0)


class CountingBucket(MemoryBucket):
    """Counts which segments are read."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.reads: Counter[str] = Counter()

    async def get(self, key: str) -> Any:
        if "/cold/" in key:
            self.reads[key] += 1
        return await super().get(key)


class CountedQueue(ColdQueue):
    def __init__(self, options: LogOptions = OPTIONS) -> None:
        super().__init__(options)
        self.store = CountingBucket(self.clock)
        self.bucket = self.store
        self.options = options
        self.process = self.engine(options)

    def other(self) -> ReplicatedLogEngine:
        return self.engine(self.options)


@pytest.fixture
def queue() -> CountedQueue:
    return CountedQueue()


async def statuses(engine: Engine) -> dict[Status, int]:
    found = Counter[Status]()
    for key, number in (await engine.count()).items():
        found[key.status] += number
    return dict(+found)


async def drain(engine: Engine, **fields: Any) -> list[str]:
    ids: list[str] = []
    while some := await claim(engine, **fields):
        ids += [task.id for task in some]
        await engine.apply([complete(task) for task in some])
    return ids


async def test_tasks_with_equal_ranks_are_claimed_without_reading_every_segment(queue: CountedQueue) -> None:
    at = queue.clock() + 100
    ids = await queue.fill(1, run_at=at)  # a batch would have different ranks
    queue.clock.advance(200)
    assert await claim(queue.process, types=("none",)) == []
    await queue.process.apply([run_now(ids[0])])  # makes the due tasks ready
    await queue.process.repair()
    fresh = queue.other()
    queue.store.reads.clear()
    assert [task.id for task in await claim(fresh, limit=1)] == ids[:1]
    assert len(queue.store.reads) <= 1
    assert await drain(fresh, limit=3) == ids[1:]


async def test_more_tasks_of_one_rank_than_fit_into_a_segment_stay_in_the_tables(queue: CountedQueue) -> None:
    """Those after them are moved all the same."""
    at = queue.clock() + 100
    same = await queue.fill(1, run_at=at)
    queue.clock.advance(200)
    assert await claim(queue.process, types=("none",)) == []  # makes the due tasks ready
    later = await queue.fill()
    assert len(await queue.objects()) == DEPTH // OPTIONS.segment_size
    assert await drain(queue.other(), limit=7) == [*same, *later]


async def test_a_task_of_a_segment_can_be_rescheduled(queue: CountedQueue) -> None:
    ids = await queue.fill()
    at = queue.clock() + 1000
    assert await queue.process.apply([reschedule(ids[-3], at)]) == [True]
    assert await drain(queue.other(), limit=4) == [task_id for task_id in ids if task_id != ids[-3]]
    queue.clock.advance(2000)
    assert await drain(queue.process) == [ids[-3]]


async def test_tasks_that_are_due_later_are_not_in_segments(queue: CountedQueue) -> None:
    ids = await queue.fill(delay=1000.0)
    assert await queue.objects() == []
    assert await claim(queue.process) == []
    queue.clock.advance(2000)
    first = await claim(queue.process, limit=1)
    await queue.process.repair()
    assert await queue.objects()
    assert [*(task.id for task in first), *await drain(queue.other(), limit=4)] == ids


async def test_a_worker_reads_no_segment_of_tasks_that_it_may_not_run() -> None:
    queue = CountedQueue(ALL_COLD)
    ids = await queue.fill(needs=("gpu",), queue="q", type="t")
    refused: list[ClaimRequest] = [
        claim_request(),
        claim_request(queues=("another",), capabilities=frozenset({"gpu"})),
        claim_request(types=("another",), capabilities=frozenset({"gpu"})),
        claim_request(per_type_limits={"t": 0}, capabilities=frozenset({"gpu"})),
        claim_request(limit=0, capabilities=frozenset({"gpu"})),
    ]
    worker = queue.other()
    for request in refused:
        assert await worker.claim(request) == []
        await worker.wait(request, 0.0)
    assert not queue.store.reads
    assert await drain(worker, capabilities=frozenset({"gpu"}), limit=3) == ids


@pytest.mark.parametrize("limit", [0, 1])
def test_a_worker_that_may_run_nothing_waits_beside_segments(limit: int) -> None:
    """A wait that ended at once would let the worker claim again and again, and pay for each request."""
    run(_wait_beside_segments(limit))


async def _wait_beside_segments(limit: int) -> None:
    queue = CountedQueue(ALL_COLD)
    await queue.fill()
    worker, request, loop = queue.other(), claim_request(per_type_limits={"t": limit}), asyncio.get_running_loop()
    await worker.claim(replace(request, limit=0))
    began = loop.time()
    await worker.wait(request, 100.0)
    assert (loop.time() - began >= 100.0) == (limit == 0)


async def test_a_paused_group_stays_in_its_segments() -> None:
    queue = CountedQueue(ALL_COLD)
    await queue.fill(group="customer=1")
    request = claim_request(takes_groups=True, group_limits={"t customer=1": 0})
    assert await queue.other().claim(request) == []
    assert not queue.store.reads
    assert len(await queue.other().claim(replace(request, group_limits={}))) == request.limit


async def test_a_unique_task_is_submitted_once_beside_segments(queue: CountedQueue) -> None:
    client = Client(queue.process)
    await queue.fill(queue="default")
    first = await client.enqueue("t", {"n": 1}, unique=Unique())
    await queue.fill(queue="default")  # now the unique task is deep in its lane
    again = await Client(queue.other()).enqueue("t", {"n": 1}, unique=Unique())
    changed = await client.enqueue("t", {"n": 1}, priority=1, unique=Unique(on_duplicate="replace"))
    assert (again.id, again.new, changed.id) == (first.id, False, first.id)
    assert (await claim(queue.other(), limit=1))[0].id == first.id


async def test_a_finished_unique_task_may_run_again_after_its_history_moved(queue: CountedQueue) -> None:
    client = Client(queue.process)
    first = await client.enqueue("t", {"n": 1}, unique=Unique())
    await queue.finish(await queue.fill(queue="default"))
    await queue.finish([first.id])
    await queue.cool_down()
    again = await client.enqueue("t", {"n": 1}, unique=Unique())
    assert again.new and again.id != first.id
    assert (await statuses(queue.process))[Status.PENDING] == 1


async def test_everything_cancelled_leaves_exact_counts(queue: CountedQueue) -> None:
    ids = await queue.fill()
    for at in range(0, DEPTH, 7):
        some = ids[at : at + 7]
        assert await queue.process.apply([cancel(task_id) for task_id in some]) == [True] * len(some)
        await queue.process.repair()
    assert await statuses(queue.other()) == {Status.CANCELLED: DEPTH}
    assert await claim(queue.other()) == []
    await check_bucket(queue.bucket)


async def test_filters_see_tasks_of_tables_and_segments_alike(queue: CountedQueue) -> None:
    """The same queue without segments is the reference."""
    plain = queue.engine(LogOptions(), MemoryBucket(queue.clock))
    for number in range(2 * DEPTH):
        queue.clock.advance(1)
        task = queue.task(type="odd" if number % 2 else "even", batch="b" if number % 3 else None)
        for engine in (queue.process, plain):
            await engine.add([task])
            if number % 4 == 0:
                for taken in await claim(engine, limit=1, worker_id=f"w{number % 8}"):
                    await engine.apply([complete(taken)])
    await queue.cool_down()
    assert len(await queue.objects()) > 10
    now = queue.clock()
    filters = [
        Filter(),
        Filter(statuses=(Status.PENDING,)),
        Filter(statuses=(Status.COMPLETED,), types=("odd",)),
        Filter(pending=(PendingKind.READY,), statuses=(Status.PENDING,)),
        Filter(pending=(PendingKind.SCHEDULED,), statuses=(Status.PENDING,)),
        Filter(batch="b"),
        Filter(worker_id="w4"),
        Filter(finished_for=7000.0),
        Filter(retrying=False, types=("even",)),
        Filter(queues=("none",)),
    ]
    for where in filters:
        pages = []
        for engine in (queue.other(), plain):
            found, after = list[str](), ""
            while page := await engine.find(where, limit=9, after=after):
                found += [task.id for task in page]
                after = cursor(page[-1])
            half = await engine.find(where, limit=100, created_before=now - 7200 - DEPTH)
            pages.append((found, [task.id for task in half]))
        assert pages[0] == pages[1], where
    whole = [[task.id for task in (await engine.snapshot()).tasks] for engine in (queue.other(), plain)]
    assert whole[0] == whole[1]
    for batch in (None, "b"):
        assert await queue.other().count(batch) == await plain.count(batch)


async def test_a_hundred_segments() -> None:
    queue = CountedQueue(replace(OPTIONS, segment_size=2))
    ids = [task_id for _ in range(6) for task_id in await queue.fill()]
    for _ in range(4):
        await queue.process.repair()
    assert len(await queue.objects()) > 100
    fresh = queue.other()
    queue.store.reads.clear()
    assert sum((await fresh.count()).values()) == len(ids)
    assert [task.id for task in await claim(fresh, limit=2)] == ids[:2]
    assert not queue.store.reads  # neither the start nor the first claim needs one
    assert await drain(fresh, limit=50) == ids[2:]
    assert all(finding.ok for finding in await examine_log(queue.bucket))
    await check_bucket(queue.bucket)


async def test_a_task_of_a_deep_lane_overtakes_by_its_priority(queue: CountedQueue) -> None:
    ids = await queue.fill(priority=6)
    assert await queue.process.apply([set_priority(ids[20], 0)]) == [True]
    await queue.fill(priority=9)
    urgent = new("urgent", priority=0)
    await queue.process.add([urgent])
    assert [task.id for task in await claim(queue.other(), limit=3)] == [ids[20], urgent.id, ids[0]]
