"""Workflows whose tasks were deleted, and that are submitted again under the same key: they have the same ids."""

import pytest
from msgspec.structs import replace

from qo.client import Client
from qo.client.describe import PlannedTask
from qo.codec import decode_value
from qo.engines.memory import MemoryEngine
from qo.forwarding_engine import ForwardingEngine
from qo.model import Binding, Note, WorkflowGraph, complete
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one
from qo.testing.workflow_histories import planned
from qo.workflows import GRAPHS, WorkflowTracker
from tests.workflows.workflow_store import WorkflowStore


class SlowNotes(ForwardingEngine):
    """A store that answers one read of a note with an earlier version."""

    answer: Note | None = None

    async def read_note(self, name: str) -> Note | None:
        answer, self.answer = self.answer, None
        return answer or await super().read_note(name)


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


async def _submit(store: WorkflowStore, *plan: PlannedTask) -> WorkflowGraph:
    store.clock.advance(1.0)
    made = await store.client.workflows.submit("daily", plan, idempotency_key="k")
    assert made.new
    return made.graph


async def test_a_task_of_a_new_workflow_waits_for_parents_that_ended_in_a_deleted_one(store: WorkflowStore) -> None:
    plan = [planned(), planned(), planned(0, 1), planned()]
    first = await _submit(store, *plan)
    worker = Client(store.engine, clock=store.clock)
    *early, last = sorted(await claim(worker.engine), key=lambda task: task.id == first.task_id(3))
    await worker.engine.apply([complete(task) for task in early])
    # Another process ends and deletes the workflow, so that this one has no reason to forget it.
    other = Client(store.engine, clock=store.clock)
    await other.engine.apply([complete(await claim_one(other.engine)), complete(last)])
    assert all(await other.engine.delete(first.task_ids()))
    again = await _submit(store, *plan)
    assert again.task_ids() == first.task_ids()
    task = next(each for each in await claim(worker.engine) if each.id == again.task_id(1))
    await worker.engine.apply([complete(task)])
    assert await claim(worker.engine) == [], "its other parent has not ended"


async def test_results_go_where_the_new_graph_says(store: WorkflowStore) -> None:
    worker, other = (Client(store.engine, clock=store.clock) for _ in range(2))
    first = await _submit(store, planned(), planned(0, bound=True))
    await worker.engine.apply([complete(await claim_one(worker.engine), b"1")])
    child = await claim_one(worker.engine)
    assert decode_value(child.payload) == {"results": [1]}
    await other.engine.apply([complete(child)])
    assert all(await other.engine.delete(first.task_ids()))
    before = planned(0, bound=True)
    node = replace(before.node, bindings=(Binding(("other",), (0,), is_list=True),))
    new = replace(before.new, payload=b'{"results":[],"other":[]}')
    await _submit(store, planned(), PlannedTask(node=node, new=new))
    await other.engine.apply([complete(await claim_one(other.engine), b"2")])
    assert decode_value((await claim_one(worker.engine)).payload) == {"results": [], "other": [2]}


async def test_a_graph_is_kept_while_tasks_are_left_that_another_process_added(store: WorkflowStore) -> None:
    graph = await store.submit(planned())
    task = await claim_one(store.client.engine)
    deleting = Client(store.engine, clock=store.clock)
    await deleting.engine.delete([graph.task_id(0)])  # refused, because it runs; this process knows the graph now
    await store.client.workflows.add(graph.token, [planned(0, bound=True, added_by=(0, task.attempt))])
    await store.client.engine.apply([complete(task, b"7")])
    await deleting.engine.delete([graph.task_id(0)])
    assert len(await store.engine.notes(GRAPHS)) == 1


async def test_a_response_that_was_overtaken_does_not_replace_a_newer_graph(store: WorkflowStore) -> None:
    graph = await store.submit(planned())
    (old,) = await store.engine.notes(GRAPHS)
    task = await claim_one(store.client.engine)
    await store.client.workflows.add(graph.token, [planned(0, added_by=(0, task.attempt))])
    slow = SlowNotes(store.engine)
    tracker = WorkflowTracker(slow)
    newest = await tracker.cache.load(graph.token)
    slow.answer = old
    assert await tracker.cache.load(graph.token) is newest
    assert newest is not None and len(newest.graph.nodes) == 2
