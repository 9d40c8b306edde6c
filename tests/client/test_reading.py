"""A look at everything between, and a hand: lists, results, cancel, replay, archive, delete."""

import asyncio

import pytest

from qo.client import Client
from qo.client.client import PAGE_SIZE
from qo.errors import InvalidSetting, InvalidTask, ResultTimeout, TaskFailed, TaskNotFound, WrongStatus
from qo.model import Filter, Status, archive, cancel, cursor, replay
from qo.testing import ManualClock

NOBODY = "0a0a0a0a-0000-8000-8000-000000000000"


async def finished(queue: Client, result: object = None) -> str:
    submitted = await queue.enqueue("t")
    (task,) = await queue.dequeue()
    await queue.ack(task, result)
    return submitted.id


async def failed(queue: Client) -> str:
    submitted = await queue.enqueue("t", max_retries=0)
    (task,) = await queue.dequeue()
    await queue.nack(task, "boom")
    return submitted.id


async def status(queue: Client, task_id: str) -> str:
    task = await queue.get(task_id)
    return "gone" if task is None else task.status.value


# --- looking


async def test_an_unknown_task_is_none_and_has_no_history(queue: Client) -> None:
    assert await queue.get(NOBODY) is None
    assert await queue.history(NOBODY) == []


@pytest.mark.parametrize("nonsense", ["", "x", "../../etc/passwd", "' OR 1=1 --", NOBODY.upper()])
async def test_what_is_no_id_is_refused_everywhere(queue: Client, nonsense: str) -> None:
    for call in (queue.get, queue.history, queue.cancel, queue.replay, queue.archive, queue.delete, queue.result):
        with pytest.raises(InvalidTask, match=r"^id: "):
            await call(nonsense)


async def test_pages_are_newest_first(queue: Client, clock: ManualClock) -> None:
    ids = []
    for _ in range(5):
        ids.append((await queue.enqueue("t")).id)
        clock.advance(1)
    page = await queue.list(limit=2)
    rest = await queue.list(limit=9, after=cursor(page[-1]))
    assert [task.id for task in (*page, *rest)] == ids[::-1]
    assert await queue.list(Filter(types=("x",))) == []


async def test_a_cursor_nobody_gave_is_refused(queue: Client) -> None:
    await queue.enqueue("t")
    with pytest.raises(InvalidSetting, match="not a position in a listing"):
        await queue.list(after="yesterday")


async def test_all_goes_through_every_page(queue: Client) -> None:
    size = 2 * PAGE_SIZE + 3
    await queue.submit_many([queue.new_task("t", b"null") for _ in range(size)])
    seen = [task.id async for task in queue.all()]
    assert len(seen) == len(set(seen)) == size
    assert [task async for task in queue.all(Filter(queues=("x",)))] == []


async def test_the_history_tells_every_step(queue: Client, clock: ManualClock) -> None:
    task_id = await failed(queue)
    clock.advance(1)
    await queue.replay(task_id)
    await queue.cancel(task_id)
    await queue.archive(task_id)
    events = await queue.history(task_id)
    assert [event.status.value for event in events] == [
        "pending", "running", "failed", "pending", "cancelled", "archived",
    ]  # fmt: skip


async def test_stats_count_by_status_then_by_type_and_queue(queue: Client) -> None:
    none = {status.value: 0 for status in Status}
    assert await queue.stats() == {**none, "by_type": {}, "by_queue": {}}
    await finished(queue)
    await queue.enqueue("a", queue="x")
    await queue.enqueue("t", queue="x")
    stats = await queue.stats()
    assert {name: stats[name] for name in none} == none | {"pending": 2, "completed": 1}
    shown = {
        name: {lane: {status: n for status, n in counts.items() if n} for lane, counts in stats[name].items()}
        for name in ("by_type", "by_queue")
    }
    assert shown == {
        "by_type": {"t": {"completed": 1, "pending": 1}, "a": {"pending": 1}},
        "by_queue": {"default": {"completed": 1}, "x": {"pending": 2}},
    }


# --- a hand


async def test_a_task_is_cancelled_replayed_archived_and_deleted(queue: Client) -> None:
    task_id = (await queue.enqueue("t")).id
    for steer, becomes in (
        (queue.cancel, "cancelled"),
        (queue.replay, "pending"),
        (queue.cancel, "cancelled"),
        (queue.archive, "archived"),
        (queue.replay, "pending"),
        (queue.cancel, "cancelled"),
        (queue.delete, "gone"),
    ):
        await steer(task_id)
        assert await status(queue, task_id) == becomes


async def test_a_hand_on_the_wrong_status_is_told_which_would_do(queue: Client) -> None:
    done = await finished(queue)
    waiting = (await queue.enqueue("t")).id
    for steer, task_id, says in (
        (queue.cancel, done, "is completed; cancel requires one of: pending, running"),
        (queue.replay, done, "is completed; replay requires one of: archived, cancelled, failed"),
        (queue.replay, waiting, "is pending; replay requires one of: archived, cancelled, failed"),
        (queue.archive, waiting, "is pending; archive requires one of: cancelled, completed, failed"),
        (
            queue.delete,
            waiting,
            "is pending; delete requires one of: archived, cancelled, completed, failed",
        ),
    ):
        with pytest.raises(WrongStatus, match=f"^task {task_id} {says}$"):
            await steer(task_id)


async def test_a_hand_on_an_unknown_task_is_told_so(queue: Client) -> None:
    for steer in (queue.cancel, queue.replay, queue.archive, queue.delete, queue.result):
        with pytest.raises(TaskNotFound, match=f"^there is no task {NOBODY}$"):
            await steer(NOBODY)


async def test_everything_that_matches_is_steered_and_counted(queue: Client) -> None:
    await queue.submit_many([queue.new_task("t", b"null") for _ in range(PAGE_SIZE + 2)])
    await queue.enqueue("other")
    where = Filter(types=("t",))
    assert await queue.change_all(where, replay) == 0
    assert await queue.change_all(where, cancel) == PAGE_SIZE + 2
    assert await queue.change_all(where, cancel) == 0
    assert await queue.change_all(where, archive) == PAGE_SIZE + 2
    assert await queue.delete_all(Filter()) == PAGE_SIZE + 2
    assert [task.type for task in await queue.list()] == ["other"]


# --- results


async def test_a_result_can_be_awaited(queue: Client) -> None:
    submitted = await queue.enqueue("t")
    waiting = asyncio.create_task(submitted.result(timeout=20))
    (task,) = await queue.dequeue()
    await queue.ack(task, {"answer": [42]})
    assert await waiting == {"answer": [42]}
    assert await queue.result(submitted.id) == {"answer": [42]}


async def test_a_raw_result_comes_back_as_bytes_and_nothing_as_none(queue: Client) -> None:
    assert await queue.result(await finished(queue, b"\x00\xff")) == b"\x00\xff"
    assert await queue.result(await finished(queue)) is None


async def test_an_archived_task_still_has_its_result(queue: Client) -> None:
    task_id = await finished(queue, "r")
    await queue.archive(task_id)
    assert await queue.result(task_id) == "r"


async def test_waiting_for_a_task_that_failed_tells_why(queue: Client) -> None:
    task_id = await failed(queue)
    with pytest.raises(TaskFailed, match=f"^task {task_id} is failed: boom$"):
        await queue.result(task_id)
    await queue.archive(task_id)
    with pytest.raises(TaskFailed, match="is archived: boom"):
        await queue.result(task_id)


async def test_waiting_for_a_task_that_was_cancelled_tells_so(queue: Client) -> None:
    task_id = (await queue.enqueue("t")).id
    await queue.cancel(task_id)
    with pytest.raises(TaskFailed, match="is cancelled: it has no result"):
        await queue.result(task_id)


async def test_a_replayed_task_that_fails_does_not_answer_with_its_earlier_result(queue: Client) -> None:
    task_id = await finished(queue, "old")
    await queue.archive(task_id)
    await queue.replay(task_id)
    (task,) = await queue.dequeue()
    await queue.engine.apply([cancel(task.id)])
    with pytest.raises(TaskFailed):
        await queue.result(task_id)


async def test_waiting_ends_when_the_time_is_up(queue: Client) -> None:
    submitted = await queue.enqueue("t")
    with pytest.raises(ResultTimeout, match=f"^task {submitted.id} is still pending$"):
        await submitted.result(timeout=0)
    with pytest.raises(ResultTimeout):
        await submitted.result(timeout=0.02)


async def test_a_task_deleted_while_awaited_is_not_found(queue: Client) -> None:
    submitted = await queue.enqueue("t")
    waiting = asyncio.create_task(submitted.result())
    await queue.cancel(submitted.id)
    await queue.delete(submitted.id)
    with pytest.raises((TaskNotFound, TaskFailed)):
        await waiting
