"""The kinds by which a task of a workflow is recognised that was released before a replay, or started by a user."""

import pytest

from qo.client import Client
from qo.codec import decode_value
from qo.encryption import Encrypted, EncryptedEngine
from qo.engines.memory import MemoryEngine
from qo.model import FailureKind, PendingKind, Task, WorkflowGraph, after_error, complete, unblock
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one
from qo.testing.workflow_histories import planned
from tests.workflows.workflow_store import WorkflowStore


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


async def _error_of(store: WorkflowStore, task_id: str) -> str:
    (task,) = await store.engine.get([task_id])
    assert task is not None and task.error is not None
    return task.error


async def _retry_with(store: WorkflowStore, task: Task, error: str) -> None:
    await store.client.engine.apply([after_error(task, error, random=0.5, after=0.0)])


async def test_a_process_without_a_key_knows_that_a_task_was_told_to_wait(store: WorkflowStore) -> None:
    encrypted = EncryptedEngine(store.engine, Encrypted(keys=[Encrypted.new_key()]))
    client = Client(encrypted, clock=store.clock)
    graph = (await client.workflows.submit("flow", [planned(), planned(0)])).graph
    first = await claim_one(client.engine)
    await encrypted.apply([complete(first)])
    await client.replay(first.id, completed=True)
    await store.engine.apply([unblock(graph, 1)])  # decided before the replay
    assert [task.id for task in await claim(store.client.engine)] == [first.id]
    assert (await store.client.workflows.read(graph.id)).nodes[1].pending_kind is PendingKind.BLOCKED


async def _started_alone(store: WorkflowStore) -> tuple[WorkflowGraph, Task]:
    """A child that a user has started while its parent runs again, and that has no result of it."""
    graph = await store.submit(planned(), planned(0, bound=True))
    first = await claim_one(store.client.engine)
    await store.client.engine.apply([complete(first, b"7")])
    await store.client.replay(first.id, completed=True)
    assert (await claim_one(store.client.engine)).id == first.id
    await store.client.run_now(graph.task_id(1))
    return graph, await claim_one(store.client.engine)


async def test_a_task_that_a_user_started_has_no_results(store: WorkflowStore) -> None:
    _, child = await _started_alone(store)
    assert decode_value(child.payload) == {"results": [None]}
    assert child.failure_kind is FailureKind.STARTED_ALONE


async def test_the_text_of_an_error_is_no_sign_that_a_user_started_the_task(store: WorkflowStore) -> None:
    graph, child = await _started_alone(store)
    await _retry_with(store, child, await _error_of(store, graph.task_id(1)))
    assert await claim(store.client.engine) == [], "it waits for its parent"


async def test_the_text_of_an_error_is_no_sign_that_a_parent_was_replayed(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    first = await claim_one(store.client.engine)
    await store.client.engine.apply([complete(first)])
    await store.client.replay(first.id, completed=True)
    text = await _error_of(store, graph.task_id(1))
    assert (await claim_one(store.client.engine)).id == first.id
    await store.client.run_now(graph.task_id(1))
    await _retry_with(store, await claim_one(store.client.engine), text)
    assert [task.id for task in await claim(store.client.engine)] == [graph.task_id(1)]
