"""Submissions under a key that were interrupted, and repeated later."""

import asyncio
from collections.abc import Sequence

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.forwarding_engine import ForwardingEngine
from qo.model import SUBMIT_DEADLINE, Change, Status, WorkflowStatus, complete, workflow_id
from qo.testing.clock import ManualClock
from qo.testing.engine_workflows import InterruptedStore
from qo.testing.samples import claim_one
from qo.testing.workflow_histories import planned
from qo.workflows import GRAPHS, OPEN_WORKFLOWS, extend_graph
from tests.workflows.workflow_store import MeddlingStore, WorkflowStore


class CountingApplies(ForwardingEngine):
    calls = 0

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        answers = await super().apply(changes)
        self.calls += 1
        return answers


PLAN = [planned(), planned(0), planned(1)]


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


async def test_a_repeat_completes_a_submission_that_was_interrupted_long_ago(store: WorkflowStore) -> None:
    with pytest.raises(StorageError):
        await Client(InterruptedStore(store.engine), clock=store.clock).workflows.submit(
            "once", PLAN, idempotency_key="k"
        )
    await store.check()
    assert await store.engine.notes(OPEN_WORKFLOWS) == [], "its tasks are cancelled"
    made = await store.client.workflows.submit("once", PLAN, idempotency_key="k")
    assert not made.new and len(await store.engine.notes(OPEN_WORKFLOWS)) == 1
    await store.check()
    for index in range(3):
        task = await claim_one(store.client.engine)
        assert task.id == made.graph.task_id(index)
        await store.client.engine.apply([complete(task)])
    assert await store.client.workflows.status(made.graph.id) is WorkflowStatus.COMPLETED


@pytest.mark.parametrize("was_told", [True, False])
async def test_a_repeat_does_not_run_deleted_tasks_again(store: WorkflowStore, *, was_told: bool) -> None:
    """Also if the process died that had stored the tasks, before it could write that all are stored."""
    made = await store.client.workflows.submit("once", PLAN, idempotency_key="k")
    if not was_told:
        await extend_graph(store.engine, made.graph.token, is_stored=False)
    for _ in PLAN:
        await store.client.engine.apply([complete(await claim_one(store.client.engine))])
    await store.client.engine.delete([made.graph.task_id(0)])
    again = await store.client.workflows.submit("once", PLAN, idempotency_key="k")
    assert not again.new and len(await store.engine.notes(GRAPHS)) == 1
    assert await store.statuses(again.graph) == [None, Status.COMPLETED, Status.COMPLETED]


async def test_a_cancellation_during_the_submission_includes_tasks_that_are_stored_later(store: WorkflowStore) -> None:
    meddling = MeddlingStore(store.engine)
    cancelling: list[asyncio.Task[int]] = []

    async def cancel() -> None:
        """Another process cancels the workflow before its first task is stored."""
        (note,) = await store.engine.notes(GRAPHS)
        id = workflow_id("flow", note.name.removeprefix(GRAPHS))
        cancelling.append(asyncio.create_task(store.client.workflows.cancel(id)))
        while not applied.calls:
            await asyncio.sleep(0)

    applied = CountingApplies(store.engine)
    store.client = Client(applied, clock=store.clock)
    meddling.before_add = cancel
    made = await Client(meddling, clock=store.clock).workflows.submit("flow", [*PLAN, planned()])
    assert await cancelling[0] == 4
    assert await store.statuses(made.graph) == [Status.CANCELLED] * 4


async def test_a_cancellation_does_not_wait_for_tasks_of_an_interrupted_submission(store: WorkflowStore) -> None:
    with pytest.raises(StorageError):
        await Client(InterruptedStore(store.engine), clock=store.clock).workflows.submit("flow", PLAN)
    (note,) = await store.engine.notes(GRAPHS)
    store.clock.advance(SUBMIT_DEADLINE + 1.0)
    id = workflow_id("flow", note.name.removeprefix(GRAPHS))
    assert await store.client.workflows.cancel(id) == 2
