"""A call that fails or whose caller leaves affects no other call of its transaction."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qo.engines import examine
from qo.engines.sqlite import SqliteEngine
from qo.errors import StorageError
from qo.model import ANY, Filter, Status, complete
from qo.testing.samples import claim, claim_request, new, stored, task_id
from tests.conditions import TIMEOUT, delay
from tests.engines.sqlite_engines import clock, connection, engine

__all__ = ["clock", "engine"]  # fixtures


async def test_a_failing_call_does_not_affect_others_in_its_transaction(engine: SqliteEngine, tmp_path: Path) -> None:
    hold = threading.Event()
    connection(engine).set_progress_handler(
        lambda: hold.wait(TIMEOUT) and False, 1
    )  # so that all calls wait for one transaction
    first = asyncio.create_task(engine.add([new("first")]))
    await asyncio.sleep(0)
    bad: Any = object()
    calls = [
        engine.add([new(0, type="u"), new(1, payload=bad)]),
        engine.add([new(2, type="v")]),
        engine.write_note("n", b"x", expected="never was"),
        engine.write_note("n", b"y", expected=ANY),
        engine.add([new(3, trace_id="\ud800")]),
        engine.claim(claim_request(worker_id=bad)),
    ]
    together = asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(0)
    hold.set()
    wrong, right, conflict, version, unwritable, nobody = await together
    await first
    connection(engine).set_progress_handler(None)
    assert isinstance(wrong, TypeError) and isinstance(unwritable, UnicodeEncodeError) and isinstance(nobody, TypeError)
    assert right == [(task_id(2), True)]
    assert type(conflict).__name__ == "Conflict" and isinstance(version, str)
    found = await engine.find(Filter(), limit=9)
    assert {task.id for task in found} == {task_id("first"), task_id(2)}
    assert sum((await engine.count()).values()) == 2
    assert [finding for finding in await examine(f"sqlite:///{tmp_path}/qo.db") if finding.ok is False] == []


async def test_a_call_cancelled_before_its_transaction_does_nothing(engine: SqliteEngine) -> None:
    await engine.add([new()])
    hold = threading.Event()
    connection(engine).set_progress_handler(lambda: hold.wait(TIMEOUT) and False, 1)
    busy = asyncio.create_task(engine.write_note("n", b"", expected=ANY))
    await delay(0.01)
    leaving = asyncio.create_task(engine.claim(claim_request()))
    await asyncio.sleep(0)
    leaving.cancel()
    hold.set()
    await busy
    await asyncio.gather(leaving, return_exceptions=True)
    connection(engine).set_progress_handler(None)
    assert (await stored(engine)).attempt == 0


async def leave_during_claim(engine: SqliteEngine, then: Callable[[], Any] = lambda: None, **fields: Any) -> Any:
    """Cancel a claim during its transaction."""
    begun, hold = threading.Event(), threading.Event()

    def progress() -> bool:
        begun.set()
        return hold.wait(TIMEOUT) and False

    connection(engine).set_progress_handler(progress, 1)
    leaving = asyncio.create_task(engine.claim(claim_request(**fields)))
    await asyncio.to_thread(begun.wait, TIMEOUT)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    following = then()
    await asyncio.sleep(0)
    hold.set()
    return following


async def test_a_claim_cancelled_during_its_transaction_releases_its_tasks(engine: SqliteEngine) -> None:
    await engine.add([new()])
    await leave_during_claim(engine)
    await engine.close()
    await engine.open()
    task = await stored(engine)
    assert (task.status, task.attempt, task.failures) == (Status.PENDING, 1, 0)
    assert len(await claim(engine)) == 1


async def test_a_cancelled_claim_that_is_repeated_keeps_its_tasks(engine: SqliteEngine) -> None:
    await engine.add([new()])
    again = await leave_during_claim(
        engine,
        lambda: asyncio.create_task(engine.claim(claim_request(lease_id="mine", is_repeat=True))),
        lease_id="mine",
    )
    (task,) = await again
    await engine.write_note("n", b"", expected=ANY)
    assert await stored(engine) == task
    assert await engine.apply([complete(task)]) == [True]


async def test_a_call_that_fails_after_a_write_is_rolled_back(engine: SqliteEngine) -> None:
    connection(engine).execute(
        """
        CREATE TEMP TRIGGER refuse AFTER INSERT ON tasks WHEN NEW.trace_id = 'late'
        BEGIN SELECT RAISE(FAIL, 'too late'); END
        """
    )  # FAIL keeps the row, so that only the writer can remove it
    answers = await asyncio.gather(
        engine.add([new(0)]), engine.add([new(1, trace_id="late")]), engine.add([new(2)]), return_exceptions=True
    )
    assert isinstance(answers[1], StorageError) and "too late" in str(answers[1])
    assert [task and task.id for task in await engine.get([task_id(n) for n in range(3)])] == [
        task_id(0),
        None,
        task_id(2),
    ]
    assert sum((await engine.count()).values()) == 2
