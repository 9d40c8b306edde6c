"""The markers of unfinished workflows, while processes close a workflow that others open again, and die."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from qo.client import Client
from qo.client.describe import PlannedTask
from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.forwarding_engine import ForwardingEngine
from qo.model import Note, PendingKind, Status, WorkflowGraph, complete
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one
from qo.testing.workflow_histories import planned
from qo.workflows import GRAPHS, OPEN_WORKFLOWS, WorkflowTracker, mark_open, marked_revision
from tests.workflows.workflow_store import MeddlingStore, WorkflowStore


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


class DyingStore(ForwardingEngine):
    """The store as a process sees it that pauses before it removes markers, and dies when it reads a note after it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def _pause(self) -> None:
        self.reached.set()
        await self.go.wait()

    async def notes(self, prefix: str) -> list[Note]:
        await self._pause()
        return await super().notes(prefix)

    async def drop_note(self, name: str) -> None:
        await self._pause()
        await super().drop_note(name)

    async def read_note(self, name: str) -> Note | None:
        if self.go.is_set():
            raise asyncio.CancelledError
        return await super().read_note(name)


async def _complete_all(store: WorkflowStore) -> None:
    while tasks := await claim(store.client.engine):
        await store.client.engine.apply([complete(task) for task in tasks])


class MeddledDrop(MeddlingStore):
    """A store in which something happens before or after a note is first removed."""

    before_drop: Callable[[], Awaitable[None]] | None = None
    after_drop: Callable[[], Awaitable[None]] | None = None

    async def drop_note(self, name: str) -> None:
        meddle, self.before_drop = self.before_drop, None
        if meddle is not None:
            await meddle()
        await super().drop_note(name)
        meddle, self.after_drop = self.after_drop, None
        if meddle is not None:
            await meddle()


async def _submit(store: WorkflowStore, *plan: PlannedTask) -> WorkflowGraph:
    """Submit a workflow under a key that others had before."""
    plan = plan or (planned(), planned(0))
    submitted = await store.client.workflows.submit("flow", plan, idempotency_key="k")
    assert submitted.new
    return submitted.graph


async def test_a_late_end_of_a_deleted_workflow_leaves_the_marker_of_the_next_one_with_the_same_key(
    store: WorkflowStore,
) -> None:
    first = await _submit(store)
    await _complete_all(store)  # and removes the marker
    await mark_open(store.engine, first)
    late = MeddledDrop(store.engine)

    async def delete_and_submit() -> None:
        assert all(await store.client.engine.delete(first.task_ids()))
        await _submit(store)

    late.before_drop = delete_and_submit
    await WorkflowTracker(late).review(first.token)
    (task,) = await claim(store.engine)
    await store.engine.apply([complete(task)])  # by a process that dies before it releases the child
    await store.check()
    (child,) = await claim(store.engine)
    assert child.id == first.task_id(1)


@pytest.mark.parametrize("plan", [(planned(),), (planned(), planned(0))])
async def test_a_workflow_that_is_submitted_while_its_predecessor_is_deleted_keeps_its_tasks(
    store: WorkflowStore, plan: tuple[PlannedTask, ...]
) -> None:
    first = await _submit(store, *plan)
    await _complete_all(store)
    deleting = MeddledDrop(store.engine)

    async def submit() -> None:
        await _submit(store, *plan)

    deleting.after_drop = submit  # the graph is gone, and the tasks are not
    await Client(deleting, clock=store.clock).engine.delete(first.task_ids())
    assert await store.statuses(first) == [Status.PENDING] * len(plan)
    await _complete_all(store)
    assert await store.statuses(first) == [Status.COMPLETED] * len(plan)
    assert await store.engine.notes(OPEN_WORKFLOWS) == []


async def test_a_deletion_that_comes_second_leaves_the_graph_of_the_next_workflow_with_the_same_key(
    store: WorkflowStore,
) -> None:
    first = await _submit(store)
    await _complete_all(store)
    deleting = MeddlingStore(store.engine)

    async def delete_and_submit() -> None:
        assert all(await store.client.engine.delete(first.task_ids()))
        await _submit(store)

    deleting.after_get = delete_and_submit
    assert await Client(deleting, clock=store.clock).engine.delete(first.task_ids()) == [False, False]
    assert await store.statuses(first) == [Status.PENDING, Status.PENDING]


async def test_tasks_that_a_repeated_submission_has_stored_are_not_taken_for_those_of_a_predecessor(
    store: WorkflowStore,
) -> None:
    slow = MeddlingStore(store.engine)

    async def repeat_and_run() -> None:
        repeated = await store.client.workflows.submit("flow", [planned()], idempotency_key="k")
        assert not repeated.new
        await _complete_all(store)

    slow.before_add = repeat_and_run
    graph = (await Client(slow, clock=store.clock).workflows.submit("flow", [planned()], idempotency_key="k")).graph
    assert await store.statuses(graph) == [Status.COMPLETED]


async def test_a_submission_that_comes_second_leaves_no_marker(store: WorkflowStore) -> None:
    slow = MeddledWrite(store.engine)

    async def submit() -> None:
        await _submit(store)

    slow.before_write = submit
    second = Client(slow, clock=store.clock).workflows
    submitted = await second.submit("flow", [planned(), planned(0)], idempotency_key="k")
    assert not submitted.new
    assert len(await store.engine.notes(OPEN_WORKFLOWS)) == 1


class MeddledWrite(MeddlingStore):
    """A store in which something happens before the graph of a workflow is first written."""

    before_write: Callable[[], Awaitable[None]] | None = None

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if name.startswith(GRAPHS):
            meddle, self.before_write = self.before_write, None
            if meddle is not None:
                await meddle()
        return await super().write_note(name, data, expected=expected)


async def test_the_end_of_a_replay_leaves_the_marker_of_the_next_replay_by_the_same_process(
    store: WorkflowStore,
) -> None:
    graph = await store.submit(planned(), planned())
    await _complete_all(store)
    meddled = MeddledDrop(store.engine)
    client = Client(meddled, clock=store.clock)

    async def die() -> None:
        raise StorageError("killed")

    async def replay_second() -> None:
        meddled.after_apply = die
        with pytest.raises(StorageError, match="killed"):
            await client.workflows.replay(graph.id, [1])

    meddled.before_drop = replay_second
    await client.workflows.replay(graph.id, [0])
    markers = [note.name for note in await store.engine.notes(OPEN_WORKFLOWS)]
    assert [name for name in markers if marked_revision(name) is None]


@pytest.mark.parametrize("replays_before", [0, 1])
async def test_a_process_that_dies_while_it_closes_a_workflow_does_not_hide_a_replay(
    store: WorkflowStore, replays_before: int
) -> None:
    graph = await store.submit(planned(), planned(0))
    for _ in range(replays_before):
        await _complete_all(store)
        await store.client.workflows.replay(graph.id, [0])
    await store.client.engine.apply([complete(await claim_one(store.client.engine))])
    await store.engine.apply([complete(await claim_one(store.engine))])
    dying = DyingStore(store.engine)
    closing = asyncio.create_task(WorkflowTracker(dying).review(graph.token))
    await dying.reached.wait()
    await store.client.workflows.replay(graph.id, [0])  # in full, after the other process has read all tasks as ended
    dying.go.set()
    with suppress(asyncio.CancelledError):
        await closing
    await store.engine.apply(
        [complete(await claim_one(store.engine))]
    )  # this process dies before it releases the child
    await store.check()
    (_, child) = (await store.client.workflows.read(graph.id)).nodes
    assert child.pending_kind is PendingKind.READY


async def test_replays_leave_one_marker_until_the_workflow_is_closed(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    await _complete_all(store)
    for _ in range(3):
        await store.client.workflows.replay(graph.id, [0])
        assert len(await store.engine.notes(OPEN_WORKFLOWS)) == 1, "the monitor reviews the workflow once for each"
        await store.client.engine.apply([complete(await claim_one(store.client.engine))])
    await _complete_all(store)
    assert await store.statuses(graph) == [Status.COMPLETED] * 2
    assert await store.engine.notes(OPEN_WORKFLOWS) == []


async def test_the_monitor_removes_a_marker_of_a_deleted_workflow_that_had_the_same_key(store: WorkflowStore) -> None:
    async def submit() -> str:
        return (await store.client.workflows.submit("flow", [planned()], idempotency_key="k")).graph.id

    id = await submit()
    await _complete_all(store)
    await store.client.workflows.replay(id, [0])
    (stale,) = [note for note in await store.engine.notes(OPEN_WORKFLOWS) if "-" in note.name.partition("/")[2]]
    await _complete_all(store)
    await Client(store.engine, clock=store.clock).engine.delete((await store.client.workflows.graph(id)).task_ids())
    assert await submit() == id
    await store.engine.write_note(stale.name, stale.data, expected="any")  # the process that removes it died
    await _complete_all(store)
    await store.check()
    assert await store.engine.notes(OPEN_WORKFLOWS) == []


async def test_a_damaged_marker_of_a_replay_stops_no_other_workflow(store: WorkflowStore) -> None:
    damaged, sound = await store.submit(planned(), planned(0)), await store.submit(planned(), planned(0))
    await store.engine.write_note(f"{OPEN_WORKFLOWS}{damaged.token}-00ff", b"noise", expected="any")
    await store.engine.apply([complete(task) for task in await claim(store.engine)])
    await store.check()
    assert {task.id for task in await claim(store.engine)} == {damaged.task_id(1), sound.task_id(1)}
    assert [note.name for note in await store.engine.notes(OPEN_WORKFLOWS) if marked_revision(note.name) is None] == []
