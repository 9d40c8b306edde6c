"""Tasks that running tasks add, while other processes end, replay or review the workflow."""

import asyncio

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import LeaseLost
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    SUBMIT_DEADLINE,
    Note,
    Status,
    Task,
    WorkflowGraph,
    WorkflowStatus,
    complete,
    expire,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one
from qo.testing.workflow_histories import planned
from qo.workflows import OPEN_WORKFLOWS
from tests.conditions import TIMEOUT
from tests.workflows.workflow_store import MeddlingStore, WorkflowStore


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


async def test_what_a_cancelled_task_adds_is_dropped(store: WorkflowStore) -> None:
    graph = await store.submit(planned())
    task = await claim_one(store.client.engine)
    await store.client.workflows.cancel(graph.id)
    assert await store.engine.notes(OPEN_WORKFLOWS) == []
    with pytest.raises(LeaseLost, match="attempt 1"):
        await store.client.workflows.add(graph.token, [planned(0, added_by=(0, task.attempt))])
    assert await store.statuses(graph) == [Status.CANCELLED, Status.CANCELLED]
    assert await store.engine.notes(OPEN_WORKFLOWS) == []


async def test_what_a_lost_attempt_adds_after_the_workflow_has_completed_is_dropped(store: WorkflowStore) -> None:
    graph = await store.submit(planned())
    lost = await claim_one(store.client.engine, lease=10.0)
    store.clock.advance(60.0)
    await store.client.engine.apply([expire(lost, random=0.0, grace=0.0)])
    store.clock.advance(60.0)
    await store.client.engine.apply([complete(await claim_one(store.client.engine), b"7")])
    with pytest.raises(LeaseLost):
        await store.client.workflows.add(graph.token, [planned(0, added_by=(0, lost.attempt))])
    assert await store.statuses(graph) == [Status.COMPLETED, Status.CANCELLED]
    assert await store.client.workflows.status(graph.id) is WorkflowStatus.COMPLETED
    assert await store.client.workflows.result(graph.id, timeout=0) == 7


class SlowNotes(ForwardingEngine):
    """Between a read and a write of a note, others have time to read it too."""

    async def read_note(self, name: str) -> Note | None:
        note = await super().read_note(name)
        await asyncio.sleep(0)
        return note


async def test_many_tasks_can_add_others_at_the_same_time() -> None:
    clock = ManualClock()
    store = WorkflowStore(SlowNotes(MemoryEngine(clock)), clock)
    graph = await store.submit(*(planned() for _ in range(100)))
    tasks = await claim(store.client.engine, limit=100)
    adding = (
        store.client.workflows.add(graph.token, [planned(at, added_by=(at, task.attempt))])
        for at, task in enumerate(tasks)
    )
    added = await asyncio.gather(*adding)
    assert sorted(index for indexes in added for index in indexes) == [*range(100, 200)]


async def test_a_pending_task_of_an_attempt_that_did_not_complete_delays_no_result(store: WorkflowStore) -> None:
    graph = await store.submit(planned())
    lost = await claim_one(store.client.engine, lease=10.0)
    await store.client.workflows.add(graph.token, [planned(0, added_by=(0, lost.attempt))])
    store.clock.advance(60.0)
    await store.engine.apply([expire(lost, random=0.0, grace=0.0)])
    store.clock.advance(60.0)
    await store.engine.apply([complete(await claim_one(store.engine), b"7")])  # the child is still blocked
    assert await store.client.workflows.result(graph.id, timeout=0) == 7


async def test_a_workflow_stays_open_if_a_task_adds_others_while_it_is_closed(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned())
    adder, other = await claim(store.engine)
    assert adder.id == graph.task_id(0)

    async def add_and_complete() -> None:
        await store.client.workflows.add(graph.token, [planned(0, added_by=(0, adder.attempt))])
        await store.engine.apply([complete(adder)])

    meddling = MeddlingStore(store.engine)
    meddling.before_get = add_and_complete
    await Client(meddling, clock=store.clock).engine.apply([complete(other)])
    assert await store.statuses(graph) == [Status.COMPLETED, Status.COMPLETED, Status.PENDING]
    assert len(await store.engine.notes(OPEN_WORKFLOWS)) == 1
    await store.check()
    assert [task.id for task in await claim(store.engine)] == [(await store.graph(graph)).task_id(2)]


async def _add_slowly(store: WorkflowStore, graph: WorkflowGraph, adder: Task, seconds: float) -> None:
    """Add a task and one that waits for it. The monitor checks between the write of the graph and that of the tasks."""
    meddling = MeddlingStore(store.engine)

    async def check() -> None:
        store.clock.advance(seconds)
        await store.monitor.check()

    meddling.before_add = check
    added_by = 0, adder.attempt
    slow = Client(meddling, clock=store.clock)
    tasks = [planned(0, added_by=added_by), planned(0, 1, bound=True, added_by=added_by)]
    assert await slow.workflows.add(graph.token, tasks) == [1, 2]


@pytest.mark.parametrize("seconds", [60.0, 2 * SUBMIT_DEADLINE])
async def test_tasks_that_are_being_added_to_an_old_workflow_are_not_missing(
    store: WorkflowStore, seconds: float
) -> None:
    graph = await store.submit(planned())
    adder = await claim_one(store.client.engine, lease=1e6)
    await store.check()
    await _add_slowly(store, graph, adder, seconds)
    await store.check()
    await store.engine.apply([complete(adder)])  # nobody but the monitor lets the children follow
    await store.check()
    for index in (1, 2):
        task = await claim_one(store.client.engine)
        assert task.id == (await store.graph(graph)).task_id(index)
        await store.client.engine.apply([complete(task, b"1")])
    assert await store.client.workflows.status(graph.id) is WorkflowStatus.COMPLETED


async def test_a_workflow_has_not_ended_if_tasks_were_added_while_it_was_read(store: WorkflowStore) -> None:
    graph = await store.submit(planned())
    adder = await claim_one(store.client.engine)
    meddling = MeddlingStore(store.engine)

    async def add_and_complete() -> None:
        await store.client.workflows.add(graph.token, [planned(0, added_by=(0, adder.attempt))])
        await store.client.engine.apply([complete(adder, b"1")])

    meddling.before_get = add_and_complete
    assert await Client(meddling, clock=store.clock).workflows.status(graph.id) is WorkflowStatus.RUNNING


async def test_a_result_that_ends_while_tasks_are_added_is_that_of_the_added_task(store: WorkflowStore) -> None:
    graph = await store.submit(planned())
    adder = await claim_one(store.client.engine)
    meddling = MeddlingStore(store.engine)

    async def add_and_complete() -> None:
        await store.client.workflows.add(graph.token, [planned(0, added_by=(0, adder.attempt))])
        await store.client.engine.apply([complete(adder, b"1")])
        await store.client.engine.apply([complete(await claim_one(store.client.engine), b"2")])

    meddling.before_get = add_and_complete
    assert await Client(meddling, clock=store.clock).workflows.result(graph.id, timeout=TIMEOUT) == 2


async def test_a_workflow_whose_adder_was_deleted_is_closed(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned())
    adder, other = await claim(store.client.engine)
    await store.client.workflows.add(graph.token, [planned(0, added_by=(0, adder.attempt))])
    await store.client.engine.apply([complete(adder)])
    await store.client.engine.apply([complete(await claim_one(store.client.engine))])
    await store.client.engine.delete([adder.id])
    store.clock.advance(2 * SUBMIT_DEADLINE)
    await Client(store.engine, clock=store.clock).engine.apply([complete(other)])
    assert await store.engine.notes(OPEN_WORKFLOWS) == []
