"""What one process writes after another has changed what it read: nothing is left blocked, run twice or forgotten."""

from collections.abc import Awaitable, Callable, Sequence
from weakref import ref

import pytest
from msgspec.structs import replace

from qo.client import Client
from qo.client.describe import PlannedTask
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidWorkflow, StorageError, WrongStatus
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    ANY,
    MAX_WORKFLOW_EDGES,
    MAX_WORKFLOW_TASKS,
    Binding,
    Change,
    Guard,
    NodeState,
    Note,
    PendingKind,
    Status,
    Task,
    cancel_child,
    complete,
    fail,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one
from qo.testing.workflow_histories import planned
from qo.workflows import GRAPHS, OPEN_WORKFLOWS, WorkflowTracker
from tests.conditions import until
from tests.workflows.workflow_store import MeddlingStore, WorkflowStore


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


class MeddlingBlock(ForwardingEngine):
    """A store in which another process acts just before a task that was released is blocked again."""

    before_block: Callable[[], Awaitable[None]] | None = None

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        if self.before_block is not None and any(change.guard is Guard.WAITING for change in changes):
            meddle, self.before_block = self.before_block, None
            await meddle()
        return await super().apply(changes)


async def test_a_task_is_not_left_blocked_if_its_parent_completes_before_it_is_blocked_again(
    store: WorkflowStore,
) -> None:
    child = planned(0)
    graph = await store.submit(planned(), PlannedTask(node=replace(child.node, delay=60.0), new=child.new))
    first = await claim_one(store.client.engine)
    await store.client.engine.apply([complete(first)])
    meddling = MeddlingBlock(store.engine)

    async def run_parent() -> None:
        await store.client.engine.apply([complete(await claim_one(store.client.engine))])

    meddling.before_block = run_parent
    await Client(meddling, clock=store.clock).replay(first.id, completed=True)
    assert meddling.before_block is None
    nodes = (await store.client.workflows.read(graph.id)).nodes
    assert [(node.status, node.pending_kind) for node in nodes] == [
        (Status.COMPLETED, None),
        (Status.PENDING, PendingKind.SCHEDULED),
    ]


async def test_of_two_replays_of_what_failed_only_one_runs_a_task_again(store: WorkflowStore) -> None:
    graph = await store.submit(planned())
    await store.client.engine.apply([fail(await claim_one(store.client.engine), "no")])
    meddling = MeddlingStore(store.engine)

    async def replay_and_complete() -> None:
        await store.client.workflows.replay(graph.id)
        await store.client.engine.apply([complete(await claim_one(store.client.engine))])

    meddling.after_get = replay_and_complete
    with pytest.raises(WrongStatus, match="none of its tasks failed"):
        await Client(meddling, clock=store.clock).workflows.replay(graph.id)
    assert await store.statuses(graph) == [Status.COMPLETED]


class MeddlingRead(ForwardingEngine):
    """A store in which another process acts before one of the reads of tasks."""

    reads_before = 0
    meddle: Callable[[], Awaitable[object]] | None = None

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        if not self.reads_before and self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            await meddle()
        self.reads_before -= 1
        return await super().get_without_values(ids)


@pytest.mark.parametrize("reads_before", range(5))
async def test_a_workflow_stays_open_if_another_process_revives_a_task(store: WorkflowStore, reads_before: int) -> None:
    graph = await store.submit(planned(), planned(0), planned())
    first, last = await claim(store.client.engine)
    await store.engine.apply([fail(first, "no")])
    await store.client.replay(first.id)
    await store.engine.apply([cancel_child(graph, 1, 0, NodeState(Status.FAILED))])  # decided before the replay
    await store.engine.apply([complete(await claim_one(store.engine))])
    engine = MeddlingRead(store.engine)
    engine.reads_before = reads_before
    client = Client(engine, clock=store.clock)

    async def review() -> None:
        await WorkflowTracker(store.engine).review(graph.token)

    engine.meddle = review
    await client.engine.apply([complete(last)])
    assert engine.meddle is None
    assert await store.statuses(graph) == [Status.COMPLETED, Status.PENDING, Status.COMPLETED]
    assert len(await store.engine.notes(OPEN_WORKFLOWS)) == 1


class UnreadableGraphs(ForwardingEngine):
    """A store that cannot read some notes."""

    unreadable = frozenset[str]()

    async def read_note(self, name: str) -> Note | None:
        if name in self.unreadable:
            raise StorageError("a damaged shard")
        return await super().read_note(name)


async def test_a_workflow_that_cannot_be_read_does_not_keep_others_waiting(store: WorkflowStore) -> None:
    graphs = [await store.submit(planned(), planned(0)) for _ in range(2)]
    engine = UnreadableGraphs(store.engine)
    client = Client(engine, clock=store.clock)
    tasks = {task.id: task for task in await claim(client.engine)}
    engine.unreadable = frozenset(GRAPHS + graph.token for graph in graphs)
    for graph in graphs:
        await client.engine.apply([complete(tasks[graph.task_id(0)])])
    engine.unreadable = frozenset({GRAPHS + graphs[0].token})

    async def is_released() -> bool:
        return bool(await claim(store.engine))

    try:
        await until(is_released)
    finally:
        await client.engine.close()


async def test_a_damaged_graph_is_left_out_of_the_list(store: WorkflowStore) -> None:
    graphs = [await store.submit(planned()) for _ in range(2)]
    await store.engine.write_note(GRAPHS + graphs[0].token, b"noise", expected=ANY)
    assert [view.id for view in await store.client.workflows.list()] == [graphs[1].id]


async def test_a_process_remembers_a_limited_number_of_tasks(store: WorkflowStore) -> None:
    tracker = WorkflowTracker(store.engine)
    group = [planned() for _ in range(MAX_WORKFLOW_TASKS)]
    graphs = [(await store.client.workflows.submit("large", group)).graph for _ in range(6)]
    loaded = [ref(await tracker.cache.load(graph.token)) for graph in graphs]
    assert [each() is not None for each in loaded] == [False, *[True] * 5]


async def test_a_process_forgets_a_workflow_that_it_has_closed(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    tracker = WorkflowTracker(store.engine)
    await tracker.cache.load(graph.token)
    for _ in graph.nodes:
        task = await claim_one(store.engine)
        await store.engine.apply([complete(task)])
        await tracker.review(graph.token)
    assert tracker.cache.epoch(graph.token) is None


def _with_results(number: int) -> PlannedTask:
    task = planned(0)
    binding = Binding(("results",), (0,) * number, is_list=True)
    return PlannedTask(node=replace(task.node, bindings=(binding,)), new=task.new)


async def test_one_result_may_be_used_many_times(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), _with_results(MAX_WORKFLOW_TASKS + 1))
    assert await store.graph(graph) == graph
    with pytest.raises(InvalidWorkflow, match="200,001 dependencies"):
        await store.submit(planned(), _with_results(MAX_WORKFLOW_EDGES + 1))
