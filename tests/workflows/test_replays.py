"""Replays of parents, while their children wait, retry or start, and while other processes decide."""

import asyncio

import pytest

from qo.client import Client
from qo.codec import decode_value
from qo.encryption import Encrypted, EncryptedEngine
from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    FILLS_RESULTS,
    NodeState,
    PendingKind,
    Status,
    Task,
    WorkflowGraph,
    after_error,
    cancel,
    cancel_child,
    complete,
    fail,
    release,
    replay,
    replay_finished,
    retry_now,
    unblock,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one
from qo.testing.workflow_histories import planned
from qo.workflows import OPEN_WORKFLOWS, WorkflowTracker, extend_graph
from tests.workflows.workflow_store import MeddlingStore, WorkflowStore


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


async def _complete(store: WorkflowStore, result: bytes = b"7") -> Task:
    task = await claim_one(store.client.engine)
    await store.client.engine.apply([complete(task, result)])
    return task


async def _kinds(store: WorkflowStore, graph: WorkflowGraph) -> list[PendingKind | None]:
    return [node.pending_kind for node in (await store.client.workflows.read(graph.id)).nodes]


async def _claim_unfilled(store: WorkflowStore) -> list[Task]:
    return await claim(store.engine, capabilities=frozenset({FILLS_RESULTS}))


async def test_a_worker_of_an_older_build_does_not_get_a_task_that_needs_results(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0, bound=True))
    await _complete(store)
    assert await claim(store.engine) == []
    await _child_runs_with(store, graph, 7)


async def _child_runs_with(store: WorkflowStore, graph: WorkflowGraph, result: int) -> None:
    child = await claim_one(store.client.engine)
    assert (child.id, decode_value(child.payload)) == (graph.task_id(1), {"results": [result]})


async def test_a_released_child_waits_for_its_replayed_parent(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0, bound=True))
    await _complete(store)
    await store.client.workflows.replay(graph.id, [0])
    assert await _kinds(store, graph) == [PendingKind.READY, PendingKind.BLOCKED]
    assert (await _complete(store, b"8")).id == graph.task_id(0)
    await _child_runs_with(store, graph, 8)


async def test_a_child_that_is_retried_waits_for_its_replayed_parent(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0, bound=True))
    await _complete(store)
    child = await claim_one(store.client.engine)
    await store.client.engine.apply([after_error(child, "again", random=0.5, after=0.0)])
    await store.client.engine.apply([replay_finished(graph.task_id(0))])
    assert await _kinds(store, graph) == [PendingKind.READY, PendingKind.BLOCKED]
    assert (await _complete(store, b"8")).id == graph.task_id(0)
    await _child_runs_with(store, graph, 8)


async def test_a_child_that_is_claimed_while_its_parent_runs_again_is_handed_back(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0, bound=True))
    await _complete(store)
    await extend_graph(store.engine, graph.token, (), epoch=1)
    await store.engine.apply([replay_finished(graph.task_id(0))])  # the process dies before it blocks the child
    (parent,) = await claim(store.client.engine)
    assert await claim(store.client.engine) == []
    assert (await _kinds(store, graph))[1] is PendingKind.BLOCKED
    await store.client.engine.apply([complete(parent, b"8")])
    await _child_runs_with(store, graph, 8)


async def test_a_child_is_not_left_blocked_if_its_parent_completes_while_it_is_handed_back(
    store: WorkflowStore,
) -> None:
    graph = await store.submit(planned(), planned(0, bound=True))
    await _complete(store)
    await extend_graph(store.engine, graph.token, (), epoch=1)
    await store.engine.apply([replay_finished(graph.task_id(0))])
    child, parent = sorted(await _claim_unfilled(store), key=lambda task: task.id == graph.task_id(0))
    await store.engine.apply([release(child)])
    meddling = MeddlingStore(store.engine)

    async def complete_parent() -> None:
        await store.client.engine.apply([complete(parent, b"8")])

    meddling.before_apply = complete_parent
    assert await claim(Client(meddling, clock=store.clock).engine) == []
    await _child_runs_with(store, graph, 8)


async def test_a_retry_without_the_result_of_a_deleted_parent_fails(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0, bound=True))
    await _complete(store)
    await store.client.engine.delete([graph.task_id(0)])
    assert await claim(store.client.engine) == []
    view = await store.client.workflows.read(graph.id)
    assert view.nodes[1].status is Status.FAILED and "was deleted" in (view.nodes[1].error or "")


async def test_what_was_read_during_a_replay_is_forgotten(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(), planned(), planned(0, 1, 2))
    first, second, third = await claim(store.client.engine)
    await store.client.engine.apply([complete(first)])
    other, meddling = Client(store.engine, clock=store.clock), MeddlingStore(store.engine)

    async def complete_second() -> None:
        await other.engine.apply([complete(second)])

    meddling.before_apply = complete_second
    await Client(meddling, clock=store.clock).replay(first.id, completed=True)
    await other.engine.apply([complete(third)])
    assert (await _kinds(store, graph))[3] is PendingKind.BLOCKED
    assert [task.id for task in await claim(store.engine)] == [first.id]


async def test_a_workflow_stays_open_if_it_is_closed_while_a_task_is_replayed(store: WorkflowStore) -> None:
    await store.submit(planned(), planned())
    first, second = await claim(store.client.engine)
    await store.client.engine.apply([complete(first)])
    meddling = MeddlingStore(store.engine)

    async def complete_second() -> None:
        await store.client.engine.apply([complete(second)])

    meddling.before_apply = complete_second
    await Client(meddling, clock=store.clock).replay(first.id, completed=True)
    assert len(await store.engine.notes(OPEN_WORKFLOWS)) == 1


class SlowDrop(ForwardingEngine):
    """A store in which a process is slow to remove a note."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def drop_note(self, name: str) -> None:
        self.reached.set()
        await self.go.wait()
        await super().drop_note(name)


async def test_the_monitor_finds_a_replay_whose_process_died_while_another_closed_the_workflow(
    store: WorkflowStore,
) -> None:
    graph = await store.submit(planned(), planned(0))
    await _complete(store)
    task = await claim_one(store.client.engine)
    slow, dying = SlowDrop(store.engine), MeddlingStore(store.engine)
    closing: list[asyncio.Task[list[bool]]] = []

    async def settle() -> None:
        """After the replay was announced, and before it is written."""
        closing.append(asyncio.create_task(Client(slow, clock=store.clock).engine.apply([fail(task, "no")])))
        await slow.reached.wait()

    async def die() -> None:
        raise StorageError("killed")

    dying.before_apply, dying.after_apply = settle, die
    with pytest.raises(StorageError, match="killed"):
        await Client(dying, clock=store.clock).replay(task.id, completed=True)
    slow.go.set()
    await closing[0]
    assert await _kinds(store, graph) == [None, PendingKind.BLOCKED]
    await store.check()
    assert await _kinds(store, graph) == [None, PendingKind.READY]
    assert len(await store.engine.notes(OPEN_WORKFLOWS)) == 1


@pytest.mark.parametrize("is_review", [True, False])
async def test_a_decision_is_dropped_if_a_parent_is_replayed_before_it_is_written(
    store: WorkflowStore, *, is_review: bool
) -> None:
    graph = await store.submit(planned(), planned(), planned(0, 1))
    first, second = await claim(store.client.engine)
    await store.client.engine.apply([complete(first)])
    meddling = MeddlingStore(store.engine)

    async def replay_first() -> None:
        await store.client.replay(first.id, completed=True)

    meddling.after_get = replay_first
    if is_review:
        await store.engine.apply([complete(second)])
        await WorkflowTracker(meddling).review(graph.token)
    else:
        await Client(meddling, clock=store.clock).engine.apply([complete(second)])
    assert await _kinds(store, graph) == [PendingKind.READY, None, PendingKind.BLOCKED]


async def test_a_child_that_a_user_cancels_after_a_replay_stays_cancelled(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    await store.client.engine.apply([fail(await claim_one(store.client.engine), "no")])
    assert await store.client.apply([replay(graph.task_id(0)), replay(graph.task_id(1))]) == [True, True]
    await store.client.engine.apply([cancel(graph.task_id(1))])
    await store.check()
    assert await store.statuses(graph) == [Status.PENDING, Status.CANCELLED]


async def test_a_worker_without_the_key_of_a_result_hands_the_child_back(store: WorkflowStore) -> None:
    def client(*keys: str) -> Client:
        return Client(EncryptedEngine(store.engine, Encrypted(keys=list(keys))), clock=store.clock)

    old_key, new_key = Encrypted.new_key(), Encrypted.new_key()
    old, both = client(old_key), client(new_key, old_key)
    graph = (await old.workflows.submit("flow", [planned(), planned(0, bound=True)])).graph
    await both.engine.apply([complete(await claim_one(both.engine), b"7")])
    assert await claim(old.engine) == []
    assert await store.statuses(graph) == [Status.COMPLETED, Status.PENDING]
    store.clock.advance(120.0)
    assert decode_value((await claim_one(both.engine)).payload) == {"results": [7]}


async def test_a_child_that_is_released_late_waits_for_the_replayed_parent(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    (first,) = await claim(store.client.engine)
    slow = MeddlingStore(store.engine)

    async def replay_first() -> None:
        await store.client.replay(first.id, completed=True)

    await store.engine.apply([complete(first)])
    slow.before_apply = replay_first
    await slow.apply([unblock(graph, 1)])  # decided before the replay
    (again,) = await claim(store.client.engine)  # of equal rank, the child may come first: it goes back
    assert again.id == first.id
    assert await claim(store.client.engine) == []
    assert await _kinds(store, graph) == [None, PendingKind.BLOCKED]
    await store.client.engine.apply([complete(again)])
    assert [task.id for task in await claim(store.client.engine)] == [graph.task_id(1)]


async def test_what_a_process_settled_before_a_replay_is_not_taken_for_true_after_it(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0), planned(0))
    (first,) = await claim(store.client.engine)
    slow = MeddlingStore(store.engine)

    async def replay_first() -> None:
        await store.client.replay(first.id, completed=True)

    slow.after_apply = replay_first
    await Client(slow, clock=store.clock).engine.apply([complete(first)])
    assert await _kinds(store, graph) == [PendingKind.READY, PendingKind.BLOCKED, PendingKind.BLOCKED]


async def test_a_child_that_is_cancelled_late_is_revived_when_the_replayed_parent_completes(
    store: WorkflowStore,
) -> None:
    graph = await store.submit(planned(), planned(0))
    (first,) = await claim(store.client.engine)
    await store.engine.apply([fail(first, "no")])
    await store.client.replay(first.id)
    await store.engine.apply([cancel_child(graph, 1, 0, NodeState(Status.FAILED))])  # decided before the replay
    await _complete(store)
    assert [task.id for task in await claim(store.client.engine)] == [graph.task_id(1)]


async def test_a_retry_waits_if_the_parent_was_replayed_and_cancelled_meanwhile(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0, bound=True))
    first = await _complete(store)
    child = await claim_one(store.client.engine)
    await store.client.replay(first.id, completed=True)
    await store.client.engine.apply([cancel(first.id)])
    await store.client.engine.apply([after_error(child, "again", random=0.5, after=0.0)])
    assert await claim(store.client.engine) == [], "it would get None instead of the result"
    assert await store.statuses(graph) == [Status.CANCELLED, Status.CANCELLED]


async def test_run_now_starts_a_child_also_while_its_parent_runs_again(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    first = await _complete(store)
    await store.client.replay(first.id, completed=True)
    await store.client.run_now(graph.task_id(1))
    assert {task.id for task in await claim(store.client.engine)} == set(graph.task_ids())


async def test_the_end_of_a_back_off_does_not_start_a_child_that_waits_again(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    first = await _complete(store)
    child = await claim_one(store.client.engine)
    await store.client.engine.apply([after_error(child, "again", random=0.5, after=60.0)])
    await store.client.replay(first.id, completed=True)
    assert await _kinds(store, graph) == [PendingKind.READY, PendingKind.BLOCKED]
    assert await store.client.apply([retry_now(child.id)]) == [False]


async def test_a_task_that_ends_together_with_a_replay_lets_its_children_follow(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(), planned(1))
    first = await claim_one(store.client.engine)
    second = await claim_one(store.client.engine)
    await store.client.engine.apply([complete(first)])
    assert await store.client.apply([replay_finished(first.id), complete(second)]) == [True, True]
    assert await _kinds(store, graph) == [PendingKind.READY, None, PendingKind.READY]
