"""Cold segments of a log: tasks that are in objects, and in no replica."""

import asyncio

import pytest
from msgspec.structs import replace

from qo.bucket import NEW
from qo.engines.replicated_log import ReplicatedLogEngine
from qo.engines.replicated_log.doctor import examine_log
from qo.engines.replicated_log.frame import decode_frame
from qo.model import Filter, NewTask, Status, Task, archive, cancel, complete, cursor, replay_finished, set_priority
from qo.testing.samples import claim, claim_request, new
from tests.engines.cold_queue import DEPTH, OPTIONS, ColdQueue
from tests.engines.log_queue import INBOX

TIMEOUT = 5.0


@pytest.fixture
def queue() -> ColdQueue:
    return ColdQueue()


async def hot_ids(queue: ColdQueue) -> set[str]:
    """The ids in the tables: of a process that may not read any segment."""
    for key in await queue.objects():
        await queue.bucket.delete(key)
    found = await queue.engine(OPTIONS).find(Filter(), limit=1000)
    return {task.id for task in found}


async def test_a_deep_lane_is_mostly_in_segments(queue: ColdQueue) -> None:
    ids = await queue.fill()
    assert len(await queue.objects()) >= (DEPTH - 6) // 5
    assert sum((await queue.process.count()).values()) == DEPTH
    hot = await hot_ids(queue)
    assert len(hot) <= 6 and set(ids[:4]) <= hot


@pytest.mark.parametrize("limit", [1, 3, 7, 50])
async def test_a_deep_lane_is_claimed_in_order(queue: ColdQueue, limit: int) -> None:
    ids = await queue.fill()
    other = queue.engine(OPTIONS)
    claimed: list[str] = []
    while some := await claim(other, limit=limit):
        claimed += [task.id for task in some]
        await other.apply([complete(task) for task in some])
    assert claimed == ids


async def test_lanes_are_claimed_in_the_order_of_all_their_tasks(queue: ColdQueue) -> None:
    ids = []
    for number in range(DEPTH):
        queue.clock.advance(1)
        task = queue.task(type="odd" if number % 2 else "even")
        ids.append(task.id)
        await queue.process.add([task])
    await queue.process.repair()
    claimed: list[str] = []
    while some := await claim(queue.process, limit=6):
        claimed += [task.id for task in some]
    assert claimed == ids


async def test_a_new_task_of_a_deep_lane_waits_for_those_in_segments(queue: ColdQueue) -> None:
    ids = await queue.fill()
    late = queue.task()
    await queue.process.add([late])
    claimed = [task.id for task in await claim(queue.process, limit=DEPTH)]
    assert claimed == ids
    assert [task.id for task in await claim(queue.process, limit=5)] == [late.id]


async def test_a_worker_is_notified_of_tasks_that_are_only_in_segments() -> None:
    options = replace(OPTIONS, hot_tasks=0, kept_tasks=0)
    queue = ColdQueue(options)
    ids = await queue.fill()
    process, request = queue.engine(options), claim_request(limit=1)
    async with asyncio.timeout(TIMEOUT):
        await process.wait(request, 10 * TIMEOUT)
    assert [task.id for task in await process.claim(request)] == ids[:1]
    assert await hot_ids(queue) == {*ids[:5]}


async def test_pages_show_the_tasks_of_segments_in_order(queue: ColdQueue) -> None:
    ids = await queue.fill()
    for limit in (3, 7, 100):
        listed: list[Task] = []
        after = ""
        while page := await queue.process.find(Filter(), limit=limit, after=after):
            listed += page
            after = cursor(page[-1])
        assert [task.id for task in listed] == ids[::-1]


async def test_tasks_in_segments_are_found_by_id(queue: ColdQueue) -> None:
    ids = await queue.fill(payload=b"here")
    await queue.process.close()  # ends its work in the background
    reader = queue.engine(OPTIONS)
    before = [key async for key in queue.bucket.keys("log/")]
    found = await reader.get([*ids, "another"])
    assert [task.id if task else None for task in found] == [*ids, None]
    assert {task.payload for task in found if task} == {b"here"}
    assert [event.status for event in await reader.history(ids[-5])] == [Status.PENDING]
    assert [key async for key in queue.bucket.keys("log/")] == before  # reads move nothing


async def test_a_repeated_submission_of_a_task_in_a_segment_adds_nothing(queue: ColdQueue) -> None:
    ids = await queue.fill()
    again = [new(id=task_id) for task_id in ids[-8:]]
    assert [added.new for added in await queue.process.add(again)] == [False] * 8
    assert [added.new for added in await queue.process.add(again[:1])] == [False]
    assert sum((await queue.process.count()).values()) == DEPTH


async def test_a_repeated_object_of_the_inbox_adds_nothing(queue: ColdQueue) -> None:
    ids = await queue.fill()
    producer = queue.engine(INBOX)
    await producer.add([new(id=ids[-1]), queue.task()])
    await producer.close()
    await queue.process.repair()
    await queue.process.repair()
    assert sum((await queue.process.count()).values()) == DEPTH + 1
    assert not await queue.waiting()


async def test_tasks_in_segments_can_be_changed(queue: ColdQueue) -> None:
    ids = await queue.fill()
    process = queue.engine(OPTIONS)
    assert await process.apply([cancel(ids[-1]), set_priority(ids[-2], 1)]) == [True, True]
    assert [task.id for task in await claim(queue.process, limit=1)] == [ids[-2]]
    counts = {key.status: number for key, number in (await queue.process.count()).items() if number}
    assert counts[Status.CANCELLED] == 1


async def test_counts_of_a_batch_include_segments(queue: ColdQueue) -> None:
    await queue.fill(batch="b")
    assert sum((await queue.process.count("b")).values()) == DEPTH
    assert len(await queue.process.find(Filter(batch="b"), limit=100)) == DEPTH
    assert await queue.process.find(Filter(batch="c"), limit=100) == []


async def test_old_finished_tasks_move_into_segments(queue: ColdQueue) -> None:
    ids = await queue.fill()
    await queue.finish(ids)
    await queue.cool_down()
    done = Filter(statuses=(Status.COMPLETED,))
    found = await queue.engine(OPTIONS).find(done, limit=100)
    assert [task.id for task in found] == ids[::-1]
    assert {task.result for task in found} == {b"done"}
    events = [event.status for event in await queue.process.history(ids[0])]
    assert events == [Status.PENDING, Status.RUNNING, Status.COMPLETED]
    assert len(await hot_ids(queue)) < 5


async def test_retention_reaches_tasks_in_segments(queue: ColdQueue) -> None:
    ids = await queue.fill()
    await queue.finish(ids)
    await queue.cool_down()
    old = Filter(statuses=(Status.COMPLETED,), finished_for=60.0)
    page = await queue.process.find(old, limit=1000)
    assert len(page) == DEPTH
    assert all(await queue.process.apply([archive(task.id) for task in page]))
    assert all(await queue.process.delete(ids))
    assert await queue.process.count() in ({}, dict.fromkeys(await queue.process.count(), 0))
    assert await queue.process.get(ids) == [None] * DEPTH


async def test_a_task_of_the_history_can_run_again(queue: ColdQueue) -> None:
    ids = await queue.fill()
    await queue.finish(ids)
    await queue.cool_down()
    (task,) = await queue.process.get(ids[:1])
    assert task is not None
    assert await queue.process.apply([replay_finished(task.id)]) == [True]
    assert [task.id for task in await claim(queue.process)] == ids[:1]


async def test_numbers_of_tasks_in_segments_are_not_given_again(queue: ColdQueue) -> None:
    ids = await queue.fill()
    await queue.finish(ids)
    await queue.cool_down()  # the tables are empty now
    fresh = queue.engine(OPTIONS)
    more: list[NewTask] = [queue.task() for _ in range(10)]
    await fresh.add(more)
    assert len([task for task in await fresh.get([*ids, *(task.id for task in more)]) if task]) == DEPTH + 10
    assert await fresh.delete(ids) == [True] * DEPTH


async def test_segments_that_nothing_names_are_deleted_below_the_floor(queue: ColdQueue) -> None:
    ids = await queue.fill()
    before = set(await queue.objects())
    await queue.finish(ids)
    await queue.engine(OPTIONS).repair()
    assert before <= set(await queue.objects())  # the floor has not passed them
    for _ in range(30):
        await queue.process.add([queue.task()])
    queue.clock.advance(200.0)
    for _ in range(10):
        await queue.process.repair()
        await queue.process.add([queue.task()])
    await queue.engine(OPTIONS).repair()
    assert not before & set(await queue.objects())
    assert all(finding.ok for finding in await examine_log(queue.bucket))


async def test_claims_pass_over_a_segment_that_is_missing(queue: ColdQueue, caplog: pytest.LogCaptureFixture) -> None:
    ids = await queue.fill()
    missing = (await queue.objects())[0]
    data = await queue.bucket.get(missing)
    assert data is not None
    await queue.bucket.delete(missing)
    lost = decode_frame(missing, data.data)[0].last
    claimed = [task.id for task in await claim(queue.process, limit=DEPTH)]
    assert len(claimed) == DEPTH - lost and claimed == [task_id for task_id in ids if task_id in claimed]
    assert missing in caplog.text
    assert [finding.name for finding in await examine_log(queue.bucket) if not finding.ok] == ["cold segments"]
    await queue.bucket.put(missing, data.data, expected=NEW)
    await queue.process.repair()
    assert len(await claim(queue.process, limit=DEPTH)) == lost


async def test_two_processes_may_move_tasks_at_the_same_time(queue: ColdQueue) -> None:
    for _ in range(DEPTH):
        await queue.process.add([queue.task()])
    others: list[ReplicatedLogEngine] = [queue.engine(OPTIONS) for _ in range(3)]
    await asyncio.gather(*(other.repair() for other in others))
    claimed = await asyncio.gather(*(claim(other, limit=15) for other in others))
    assert sorted(len(tasks) for tasks in claimed) == [10, 15, 15]
    assert len({task.id for tasks in claimed for task in tasks}) == DEPTH
