"""A look at everything between, and a hand: lists, results, cancel, replay, archive, delete."""

import asyncio

import pytest

from qo.client import Client
from qo.client.changes_by_id import PAGE_SIZE
from qo.errors import InvalidSetting, InvalidTask, ResultTimeout, TaskFailed, TaskNotFound, WrongStatus
from qo.model import Filter, Status, archive, cancel, cursor, replay
from qo.testing import ManualClock

NOBODY = "0a0a0a0a-0000-8000-8000-000000000000"


async def finished(client: Client, result: object = None) -> str:
    submitted = await client.enqueue("t")
    (task,) = await client.dequeue()
    await client.ack(task, result)
    return submitted.id


async def failed(client: Client) -> str:
    submitted = await client.enqueue("t", max_retries=0)
    (task,) = await client.dequeue()
    await client.nack(task, "boom")
    return submitted.id


async def status(client: Client, task_id: str) -> str:
    task = await client.get(task_id)
    return "gone" if task is None else task.status.value


# --- looking


async def test_an_unknown_task_is_none_and_has_no_history(client: Client) -> None:
    assert await client.get(NOBODY) is None
    assert await client.history(NOBODY) == []


@pytest.mark.parametrize("nonsense", ["", "x", "../../etc/passwd", "' OR 1=1 --", NOBODY.upper()])
async def test_what_is_no_id_is_refused_everywhere(client: Client, nonsense: str) -> None:
    for call in (
        client.get,
        client.history,
        client.cancel,
        client.replay,
        client.archive,
        client.delete,
        client.result,
    ):
        with pytest.raises(InvalidTask, match=r"^id: "):
            await call(nonsense)


async def test_pages_are_newest_first(client: Client, clock: ManualClock) -> None:
    ids = []
    for _ in range(5):
        ids.append((await client.enqueue("t")).id)
        clock.advance(1)
    page = await client.list(limit=2)
    rest = await client.list(limit=9, after=cursor(page[-1]))
    assert [task.id for task in (*page, *rest)] == ids[::-1]
    assert await client.list(Filter(types=("x",))) == []


async def test_an_invalid_cursor_is_refused(client: Client) -> None:
    await client.enqueue("t")
    with pytest.raises(InvalidSetting, match="not a position in a listing"):
        await client.list(after="yesterday")


async def test_all_goes_through_every_page(client: Client) -> None:
    size = 2 * PAGE_SIZE + 3
    await client.submit_many([client.new_task("t", b"null") for _ in range(size)])
    seen = [task.id async for task in client.all()]
    assert len(seen) == len(set(seen)) == size
    assert [task async for task in client.all(Filter(queues=("x",)))] == []


async def test_the_history_shows_every_step(client: Client, clock: ManualClock) -> None:
    task_id = await failed(client)
    clock.advance(1)
    await client.replay(task_id)
    await client.cancel(task_id)
    await client.archive(task_id)
    events = await client.history(task_id)
    assert [event.status.value for event in events] == [
        "pending", "running", "failed", "pending", "cancelled", "archived",
    ]  # fmt: skip


async def test_stats_count_by_status_then_by_type_and_queue(client: Client) -> None:
    none = {status.value: 0 for status in Status}
    assert await client.stats() == {**none, "by_type": {}, "by_queue": {}}
    await finished(client)
    await client.enqueue("a", queue="x")
    await client.enqueue("t", queue="x")
    stats = await client.stats()
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


async def test_a_task_is_cancelled_replayed_archived_and_deleted(client: Client) -> None:
    task_id = (await client.enqueue("t")).id
    for steer, becomes in (
        (client.cancel, "cancelled"),
        (client.replay, "pending"),
        (client.cancel, "cancelled"),
        (client.archive, "archived"),
        (client.replay, "pending"),
        (client.cancel, "cancelled"),
        (client.delete, "gone"),
    ):
        await steer(task_id)
        assert await status(client, task_id) == becomes


async def test_an_action_on_the_wrong_status_lists_the_allowed_ones(client: Client) -> None:
    done = await finished(client)
    waiting = (await client.enqueue("t")).id
    for steer, task_id, says in (
        (client.cancel, done, "is completed; cancel requires one of: pending, running"),
        (client.replay, done, "is completed; replay requires one of: archived, cancelled, failed"),
        (client.replay, waiting, "is pending; replay requires one of: archived, cancelled, failed"),
        (client.archive, waiting, "is pending; archive requires one of: cancelled, completed, failed"),
        (
            client.delete,
            waiting,
            "is pending; delete requires one of: archived, cancelled, completed, failed",
        ),
    ):
        with pytest.raises(WrongStatus, match=f"^task {task_id} {says}$"):
            await steer(task_id)


async def test_an_action_on_an_unknown_task_is_an_error(client: Client) -> None:
    for steer in (client.cancel, client.replay, client.archive, client.delete, client.result):
        with pytest.raises(TaskNotFound, match=f"^there is no task {NOBODY}$"):
            await steer(NOBODY)


async def test_everything_that_matches_is_steered_and_counted(client: Client) -> None:
    await client.submit_many([client.new_task("t", b"null") for _ in range(PAGE_SIZE + 2)])
    await client.enqueue("other")
    where = Filter(types=("t",))
    assert await client.change_all(where, replay) == 0
    assert await client.change_all(where, cancel) == PAGE_SIZE + 2
    assert await client.change_all(where, cancel) == 0
    assert await client.change_all(where, archive) == PAGE_SIZE + 2
    assert await client.delete_all(Filter()) == PAGE_SIZE + 2
    assert [task.type for task in await client.list()] == ["other"]


# --- results


async def test_a_result_can_be_awaited(client: Client) -> None:
    submitted = await client.enqueue("t")
    waiting = asyncio.create_task(submitted.result(timeout=20))
    (task,) = await client.dequeue()
    await client.ack(task, {"answer": [42]})
    assert await waiting == {"answer": [42]}
    assert await client.result(submitted.id) == {"answer": [42]}


async def test_a_raw_result_comes_back_as_bytes_and_nothing_as_none(client: Client) -> None:
    assert await client.result(await finished(client, b"\x00\xff")) == b"\x00\xff"
    assert await client.result(await finished(client)) is None


async def test_an_archived_task_still_has_its_result(client: Client) -> None:
    task_id = await finished(client, "r")
    await client.archive(task_id)
    assert await client.result(task_id) == "r"


async def test_waiting_for_a_task_that_failed_raises_the_reason(client: Client) -> None:
    task_id = await failed(client)
    with pytest.raises(TaskFailed, match=f"^task {task_id} is failed: boom$"):
        await client.result(task_id)
    await client.archive(task_id)
    with pytest.raises(TaskFailed, match="is archived: boom"):
        await client.result(task_id)


async def test_waiting_for_a_cancelled_task_raises(client: Client) -> None:
    task_id = (await client.enqueue("t")).id
    await client.cancel(task_id)
    with pytest.raises(TaskFailed, match="is cancelled: it has no result"):
        await client.result(task_id)


async def test_a_replayed_task_that_fails_does_not_answer_with_its_earlier_result(client: Client) -> None:
    task_id = await finished(client, "old")
    await client.archive(task_id)
    await client.replay(task_id)
    (task,) = await client.dequeue()
    await client.engine.apply([cancel(task.id)])
    with pytest.raises(TaskFailed):
        await client.result(task_id)


async def test_waiting_ends_when_the_time_is_up(client: Client) -> None:
    submitted = await client.enqueue("t")
    with pytest.raises(ResultTimeout, match=f"^task {submitted.id} is still pending$"):
        await submitted.result(timeout=0)
    with pytest.raises(ResultTimeout):
        await submitted.result(timeout=0.02)


async def test_a_task_deleted_while_awaited_is_not_found(client: Client) -> None:
    submitted = await client.enqueue("t")
    waiting = asyncio.create_task(submitted.result())
    await client.cancel(submitted.id)
    await client.delete(submitted.id)
    with pytest.raises((TaskNotFound, TaskFailed)):
        await waiting
