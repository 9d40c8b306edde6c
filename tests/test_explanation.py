"""Why a task waits: each reason alone, together, and from a real store."""

from typing import Any

import pytest
from msgspec.structs import replace

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.explanation import Explanation, TasksBefore, explain
from qo.handled_types import Consumers
from qo.model import Task, after_error, created
from qo.notes import Controls, WorkerNote
from qo.testing import ManualClock
from qo.testing.samples import claim_one, new, task_id

NOW = 1_700_000_000.0


def waiting(**fields: Any) -> Task:
    return created(new(**fields), NOW)


def worker(**fields: Any) -> WorkerNote:
    given: dict[str, Any] = {"worker_id": "w1", "started_at": NOW, "last_heartbeat": NOW, "capacity": 2} | fields
    return WorkerNote(**given)


def told(task: Task, **known: Any) -> Explanation:
    given: dict[str, Any] = {"controls": Controls(), "workers": [worker()]} | known
    return explain(task, NOW, **given)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"controls": Controls(paused=True)}, "all tasks are paused"),
        ({"controls": Controls(paused_queues=frozenset({"q"}))}, "queue q is paused"),
        ({"controls": Controls(paused_types=frozenset({"t"}))}, "type t is paused"),
        ({"workers": []}, "no worker is running"),
        ({"workers": [worker(last_heartbeat=NOW - 1000)]}, "no worker is running"),
        ({"workers": [worker(status="draining")]}, "no worker is running"),
        ({"workers": [worker(types=("u",))]}, "no running worker handles type t of queue q"),
        ({"workers": [worker(queues=("r",))]}, "no running worker handles type t of queue q"),
        ({"workers": [worker(current_load=2)]}, "all 2 slots of the workers that can run it are busy"),
        ({"workers": [worker(capacity=1, current_load=1)]}, "the only slot of the workers that can run it is busy"),
        ({"controls": Controls(rate_limit=1.0)}, "each worker starts at most 1 task per second"),
        ({"controls": Controls(rate_limit=0.5)}, "each worker starts at most 0.5 tasks per second"),
        ({"controls": Controls(rate_limits={"t": 3.0})}, "each worker starts at most 3 tasks of type t per second"),
        ({"before": TasksBefore(number=1, is_exact=True)}, "1 task in its queue goes before it"),
        ({"before": TasksBefore(number=5000, is_exact=False)}, "at most 5,000 tasks in its queue go before it"),
        ({"before": TasksBefore(number=0, is_exact=True)}, "it is next in its queue"),
        ({"workers": [], "consumers": Consumers(until={"q/t": NOW + 9})}, ""),
        ({"workers": [], "consumers": Consumers(until={"q/t": NOW - 9})}, "no worker is running"),
    ],
)
def test_a_due_task_waits_for_this(known: dict[str, Any], text: str) -> None:
    assert told(waiting(), **known).text == text


def test_a_missing_capability_is_named() -> None:
    task = waiting(needs=("disk", "gpu"))
    known = {"workers": [worker(capabilities=("disk",)), worker(types=("u",), capabilities=("disk", "gpu"))]}
    assert told(task, **known).text == "no running worker that handles type t has capability gpu"
    known = {"workers": [worker(capabilities=("disk",)), worker(capabilities=("gpu",))]}
    assert told(task, **known).text == "no running worker that handles type t has capabilities disk, gpu"
    assert told(task, workers=[worker(capabilities=("disk", "gpu"))]).reasons == ()


def test_a_task_that_is_due_later_shows_when() -> None:
    later = waiting(delay=7200.0)
    assert told(later).text == "due at 2023-11-15T00:13:20.000Z, in 2.0 h"
    failed = replace(waiting(delay=9.0), failures=1, attempt=2)
    assert told(failed).text == "attempt 2 failed; waiting for the retry at 2023-11-14T22:13:29.000Z, in 9.0 s"
    blocked = told(later, workers=[])
    assert [reason.kind for reason in blocked.reasons] == ["scheduled", "no_worker"]
    assert all(reason.is_blocking for reason in blocked.reasons)


async def test_a_client_explains_tasks_of_a_store() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    client = Client(engine, clock=clock)
    await engine.add([new(0), new(1, priority=0), new(2), new(3, delay=60)])
    held = await claim_one(engine)
    assert (await client.explain(held.id)).text == "not waiting: worker w1 is running it"
    texts = [(await client.explain(task_id(number))).text for number in (0, 2)]
    assert texts == ["no worker is running", "no worker is running; 1 task in its queue goes before it"]
    await engine.apply([after_error(held, "e", random=0.5, after=5)])
    assert [(await client.explain(task_id(number))).kind for number in (1, 3)] == ["retrying", "scheduled"]
    await client.cancel(task_id(3))
    assert (await client.explain(task_id(3))).text == "not waiting: the task is cancelled"
    kinds = await client.pending()
    assert kinds.total() == {"ready": 2, "scheduled": 0, "retrying": 1, "blocked": 0} and kinds.is_complete


async def test_a_deep_queue_is_estimated_from_its_counts() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    client = Client(engine, clock=clock)
    await engine.add([new(number, priority=9) for number in range(900)])
    await engine.add([new(number) for number in range(1000, 1201)])
    assert "at most 200 tasks in its queue go before it" in (await client.explain(task_id(1000))).text
