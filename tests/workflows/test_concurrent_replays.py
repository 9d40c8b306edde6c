"""Replays while other processes replay the same workflow, or add tasks to it."""

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.model import PendingKind, WorkflowGraph, complete, fail, replay, replay_finished
from qo.testing.clock import ManualClock
from qo.testing.samples import claim_one
from qo.testing.workflow_histories import planned
from qo.workflows import extend_graph
from tests.workflows.workflow_store import MeddlingStore, WorkflowStore


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


async def _kinds(store: WorkflowStore, graph: WorkflowGraph) -> list[PendingKind | None]:
    return [node.pending_kind for node in (await store.client.workflows.read(graph.id)).nodes]


async def test_a_replay_blocks_children_however_often_other_processes_replay_meanwhile(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    await store.client.engine.apply([complete(await claim_one(store.client.engine))])
    meddling = MeddlingStore(store.engine)
    replays = 0

    async def begin_replay() -> None:
        nonlocal replays
        replays += 1
        await extend_graph(store.engine, graph.token, epoch=1)
        if replays < 10:
            meddling.after_get = begin_replay

    async def meddle() -> None:
        meddling.after_get = begin_replay

    meddling.after_apply = meddle  # of the mark of the child
    await Client(meddling, clock=store.clock).engine.apply([replay_finished(graph.task_id(0))])
    assert replays == 10
    assert await _kinds(store, graph) == [PendingKind.READY, PendingKind.BLOCKED]


async def test_a_replay_does_not_wait_for_tasks_that_are_being_added(
    store: WorkflowStore, caplog: pytest.LogCaptureFixture
) -> None:
    graph = await store.submit(planned())
    adder = await claim_one(store.client.engine)
    added = planned(0, added_by=(0, adder.attempt))
    await extend_graph(store.engine, graph.token, (added.node,))  # by a process that is about to store the task
    await store.client.engine.apply([fail(adder, "no")])
    await store.client.engine.apply([replay(adder.id)])
    assert caplog.text == ""
    assert await _kinds(store, graph) == [PendingKind.READY, None]
