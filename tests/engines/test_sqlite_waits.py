"""Waiting for a task in a SQLite file: of this engine, of another process, or one that becomes due."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite.watch import FileWatch, slower
from qo.errors import StorageError
from qo.model import archive, cancel, release
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, task_id
from tests.conditions import delay
from tests.engines.sqlite_engines import clock, connection, engine, statements

__all__ = ["clock", "engine"]  # fixtures


async def waited(engine: SqliteEngine, timeout: float = 20, **fields: Any) -> float:
    start = time.perf_counter()
    await engine.wait(claim_request(**fields), timeout)
    return time.perf_counter() - start


async def test_waiting_ends_immediately_when_something_can_be_claimed(engine: SqliteEngine) -> None:
    await engine.add([new()])
    assert await waited(engine) < 5
    await engine.apply([release(await claim_one(engine))])
    assert await waited(engine) < 5


async def test_waiting_does_not_end_for_tasks_that_do_not_match(engine: SqliteEngine) -> None:
    waiting = asyncio.create_task(waited(engine, 0.2, types=("t",), per_type_limits={"full": 0}))
    await delay(0.01)
    await engine.add([new(0, type="u"), new(1, type="full"), new(2, type="t", needs=("gpu",))])
    assert await waiting >= 0.2


async def test_waiting_ends_when_another_engine_adds(engine: SqliteEngine, clock: ManualClock, tmp_path: Path) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    waiting = asyncio.create_task(waited(engine))
    await delay(0.05)
    await other.add([new()])
    assert await waiting < 5
    await other.close()


async def test_waiting_ends_for_a_task_of_this_engine_without_a_poll(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileWatch, "_version", lambda _: 0)
    waiting = asyncio.create_task(waited(engine))
    await delay(0.05)
    await engine.add([new()])
    assert await waiting < 5


async def test_waiting_ends_when_a_task_becomes_due(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    await engine.add([new(0, delay=0.1), new(1, type="u")])
    assert await waited(engine, types=("t",)) < 5
    assert [task.id for task in await claim(engine, types=("t",))] == [task_id(0)]
    await engine.close()


async def test_waiting_at_a_closed_engine_is_refused(engine: SqliteEngine) -> None:
    waiting = asyncio.create_task(engine.wait(claim_request(), 30))
    await delay(0.01)
    await engine.close()
    with pytest.raises(StorageError):
        await waiting


async def test_an_idle_wait_polls_rarely(engine: SqliteEngine) -> None:
    await engine.add([new(0, type="u"), new(1, delay=3600)])
    await waited(engine, 0.3, types=("t",))  # until the polls have slowed down
    with statements(connection(engine, 2)) as seen:
        await waited(engine, 1.0, types=("t",))
    assert 0 < len(seen) < 60  # each takes about 10 µs


def test_polls_are_frequent_while_a_queue_is_in_use_and_slow_down_to_ten_per_second() -> None:
    polls, interval = [0.0], 0.001
    while polls[-1] < 20:
        polls.append(polls[-1] + interval)
        interval = slower(interval)
    assert sum(look < 1 for look in polls) > 30
    assert sum(10 <= look < 20 for look in polls) <= 101


async def test_several_event_loops_may_share_an_engine(engine: SqliteEngine) -> None:
    def elsewhere() -> int:
        return len(asyncio.run(engine.add([new(n) for n in range(5)])))

    waiting = asyncio.create_task(waited(engine))
    assert await asyncio.to_thread(elsewhere) == 5
    assert await waiting < 5
    assert await engine.apply([cancel(task_id(0))]) == [True]
    assert await engine.apply([archive(task_id(0))]) == [True]
