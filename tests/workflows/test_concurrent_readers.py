"""Coroutines of one process that use the same cached workflow while it grows."""

import pytest

from qo.engines.memory import MemoryEngine
from qo.model import Status, complete
from qo.testing.clock import ManualClock
from qo.testing.samples import claim_one
from qo.testing.workflow_histories import planned
from qo.workflows import WorkflowTracker
from tests.workflows.workflow_store import MeddlingStore, WorkflowStore


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


async def test_a_review_goes_on_when_tasks_are_added_while_it_reads(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    adder = await claim_one(store.client.engine)
    meddling = MeddlingStore(store.engine)
    tracker = WorkflowTracker(meddling)

    async def add() -> None:
        await store.client.workflows.add(graph.token, [planned(0, added_by=(0, adder.attempt))])
        await tracker.cache.load(graph.token)  # for another task that has ended

    meddling.after_get = add
    assert not await tracker.review(graph.token)
    await store.client.engine.apply([complete(adder)])
    assert await store.statuses(graph) == [Status.COMPLETED, Status.PENDING, Status.PENDING]
