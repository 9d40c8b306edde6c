"""What the monitor does after crashes, and what retention leaves alone."""

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.model import SUBMIT_DEADLINE, ParentFailure, Status, WorkflowStatus, complete, fail
from qo.sweep import Retention
from qo.testing.clock import ManualClock
from qo.testing.engine_workflows import InterruptedStore
from qo.testing.samples import claim, claim_one
from qo.testing.workflow_histories import planned
from qo.workflows import GRAPHS, OPEN_WORKFLOWS
from tests.workflows.workflow_store import WorkflowStore


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


async def test_the_monitor_releases_what_a_dead_process_left_blocked(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0), planned(1))
    await store.engine.apply([complete(await claim_one(store.engine))])  # nobody lets the children follow
    assert await claim(store.engine) == []
    await store.check()
    assert [task.id for task in await claim(store.engine)] == [graph.task_id(1)]


async def test_the_monitor_cancels_the_children_of_a_failed_task(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0), planned(1))
    await store.engine.apply([fail(await claim_one(store.engine), "no")])
    await store.check()
    assert await store.statuses(graph) == [Status.FAILED, Status.CANCELLED, Status.CANCELLED]
    assert await store.engine.notes(OPEN_WORKFLOWS) == []


async def test_an_interrupted_submission_ends_with_a_reason(store: WorkflowStore) -> None:
    broken = Client(InterruptedStore(store.engine), clock=store.clock)
    with pytest.raises(StorageError):
        await broken.workflows.submit("flow", [planned(), planned(0)])
    store.clock.advance(SUBMIT_DEADLINE / 2)
    await store.monitor.check()
    (note,) = await store.engine.notes(GRAPHS)
    graph = await store.client.workflows.graph(f"flow-{note.name.removeprefix(GRAPHS)}")
    assert await store.statuses(graph) == [None, Status.PENDING], "its submission may go on"
    await store.check()
    view = await store.client.workflows.read(graph.id)
    assert view.status is WorkflowStatus.FAILED and "interrupted" in (view.nodes[1].error or "")


async def test_a_marker_without_a_graph_is_dropped(store: WorkflowStore) -> None:
    graph = await store.submit(planned())
    await store.engine.drop_note(GRAPHS + graph.token)
    await store.check()
    assert await store.engine.notes(OPEN_WORKFLOWS) == []


async def test_retention_keeps_the_tasks_of_a_workflow_until_all_have_ended(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0, bound=True))
    await store.client.engine.apply([complete(await claim_one(store.client.engine), b"7")])
    child = await claim_one(store.client.engine)
    store.clock.advance(1e6)
    await Retention(finished=10.0).tidy(store.client.engine)
    assert (await store.statuses(graph))[0] is Status.COMPLETED
    await store.client.engine.apply([complete(child)])
    for _ in range(2):
        store.clock.advance(1e6)
        await Retention(finished=10.0).tidy(store.client.engine)
    assert await store.engine.get(graph.task_ids()) == [None, None]
    assert await store.engine.notes(GRAPHS) == []


async def test_a_child_may_wait_for_the_replay_of_its_parent(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0, on_parent_failure=ParentFailure.WAIT))
    await store.client.engine.apply([fail(await claim_one(store.client.engine), "no")])
    await store.check()
    assert await store.client.workflows.status(graph.id) is WorkflowStatus.WAITING
    await store.client.workflows.replay(graph.id)
    await store.client.engine.apply([complete(await claim_one(store.client.engine))])
    assert [task.id for task in await claim(store.client.engine)] == [graph.task_id(1)]


async def test_a_damaged_graph_stops_only_its_own_workflow(store: WorkflowStore) -> None:
    damaged, sound = await store.submit(planned(), planned(0)), await store.submit(planned(), planned(0))
    await store.engine.write_note(GRAPHS + damaged.token, b"noise", expected="any")
    tasks = await claim(store.client.engine)
    await store.client.engine.apply([complete(task) for task in tasks])
    await store.check()
    assert [task.id for task in await claim(store.client.engine)] == [sound.task_id(1)]
