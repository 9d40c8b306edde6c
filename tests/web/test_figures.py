"""Depths are counted at any length; ages and places are exact for short queues, honest estimates for long ones."""

from datetime import UTC, datetime

from qo.client import Client, Priority
from qo.codec import task_view
from qo.engines.memory import MemoryEngine
from qo.model import NewTask
from qo.testing import ManualClock
from qo.web.stats import wait_times
from qo.web.stats.sampler import PAGE_SIZE, QueuePosition, ReadySurvey, Sampler
from qo.web.stats.wait_times import OldestTasks


async def fill(client: Client, number: int, priority: Priority) -> None:
    tasks: list[NewTask] = [client.new_task("t", b"null", priority=priority) for _ in range(number)]
    await client.submit_many(tasks)


async def test_a_short_queue_is_counted_exactly():
    clock = ManualClock()
    engine = MemoryEngine(clock)
    client = Client(engine, clock=clock)
    await fill(client, 3, "high")
    clock.advance(40)
    await fill(client, 2, "low")
    clock.advance(10)
    waiting = await ReadySurvey(engine).read(await engine.count(), clock())
    assert waiting.exact and waiting.depth == {"high": 3, "medium": 0, "low": 2}
    waited = {level: since and round(clock() - since) for level, since in waiting.oldest.items()}
    assert waited == {"high": 50, "medium": None, "low": 10}


async def test_a_task_whose_run_at_lies_years_back_has_waited_since_it_was_submitted():
    clock = ManualClock()
    engine = MemoryEngine(clock)
    client = Client(engine, clock=clock)
    submitted = await client.enqueue("t", priority="low", run_at=datetime(2001, 1, 1, tzinfo=UTC))
    clock.advance(50)
    waiting = await ReadySurvey(engine).read(await engine.count(), clock())
    assert waiting.oldest["low"] == clock() - 50
    assert await OldestTasks(engine).due_since(["default"], clock()) == {"default": clock() - 50}
    assert (await wait_times.wait_percentiles(engine, [], clock()))["low"]["p99"] == 50.0
    task = await client.get(submitted.id)
    assert task is not None
    view = task_view(task, clock())
    assert (view["available_at"], view["effective_priority"]) == ("2001-01-01T00:00:00.000Z", 9)


async def test_a_long_queue_is_counted_and_its_end_is_found():
    clock = ManualClock()
    engine = MemoryEngine(clock)
    client = Client(engine, clock=clock)
    await fill(client, 1, "high")
    clock.advance(100)
    for _ in range(10):
        await fill(client, PAGE_SIZE // 4 + 7, "low")
        clock.advance(1)
        await fill(client, PAGE_SIZE // 4, "medium")
        clock.advance(1)
    survey = ReadySurvey(engine)
    for _ in range(6):  # pages of a walk to the end
        waiting = await survey.read(await engine.count(), clock())
    assert not waiting.exact
    assert waiting.depth == {"high": 1, "medium": 10 * (PAGE_SIZE // 4), "low": 10 * (PAGE_SIZE // 4 + 7)}
    since = waiting.oldest["high"]
    assert since is not None and clock() - since > 100

    (first,) = await client.dequeue()
    assert first.priority == 0
    assert (await survey.read(await engine.count(), clock())).oldest["high"] is None


async def test_places_in_a_long_line_are_counted_by_level():
    clock = ManualClock()
    engine = MemoryEngine(clock)
    client = Client(engine, clock=clock)
    await fill(client, 2 * PAGE_SIZE, "medium")
    position = QueuePosition(Sampler(engine, interval=5.0, clock=clock))
    await position.refresh()
    assert position.of(clock(), 0) == 1 and position.of(clock(), 0) == 2
    assert position.of(clock(), 9) == 2 * PAGE_SIZE + 3
