"""What a workflow does with odd input, and with stores and callers that fail at a bad moment."""

import asyncio
from collections.abc import Sequence

import pytest

import qo
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidTask, InvalidWorkflow, StorageError
from qo.explanation import explain_task
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    ANY,
    BLOCKED_AT,
    PAYLOAD_LIMIT,
    Change,
    Guard,
    Note,
    Status,
    Task,
    complete,
    needs_results,
    node_address,
    workflow_task_id,
)
from qo.monitor import Monitor
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, new
from qo.testing.workflow_histories import planned
from qo.workflows import GRAPHS
from qo.workflows.parent_results import MAX_RESULTS_SIZE
from tests.workflows.workflow_store import MeddlingStore, WorkflowStore

app = qo.App("memory://")


@app.task
def number(n: int) -> int:
    return n


@app.task
def total(parts: dict[int, int]) -> int:
    return sum(key * value for key, value in parts.items())


@app.task
def count(parts: dict[float, int]) -> int:
    return len(parts)


@pytest.fixture
def store() -> WorkflowStore:
    clock = ManualClock()
    return WorkflowStore(MemoryEngine(clock), clock)


def test_results_may_be_values_of_a_dict_with_numbers_as_keys() -> None:
    with app.test_mode() as tester:
        flow = app.workflow("keys")
        first, second = flow.add(number.s(3)), flow.add(number.s(5))
        flow.add(total.s({1: first, 2: second}))
        run = flow.submit()
        tester.drain()
        assert run.result(timeout=5) == 13


def test_other_keys_of_a_dict_with_results_are_refused() -> None:
    flow = app.workflow("keys")
    first = flow.add(number.s(3))
    with pytest.raises(InvalidWorkflow, match="argument 'parts': the key"):
        flow.add(count.s({1.5: first}))


async def test_a_task_before_its_parent_is_refused(store: WorkflowStore) -> None:
    with pytest.raises(InvalidWorkflow, match="task 0 depends on"):
        await store.submit(planned(1), planned())
    assert await store.engine.notes(GRAPHS) == []


class LateVisibility(ForwardingEngine):
    """A store whose `apply` finds a new task only at the second call."""

    is_late = True

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        if self.is_late and any(change.guard is Guard.BLOCKED for change in changes):
            self.is_late = False
            return [False] * len(changes)
        return await super().apply(changes)


async def test_a_release_is_repeated_if_the_store_does_not_find_the_child_yet(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    client = Client(LateVisibility(store.engine), clock=store.clock)
    await client.engine.apply([complete(await claim_one(client.engine))])
    assert [task.id for task in await claim(client.engine)] == [graph.task_id(1)]


async def test_children_follow_although_the_caller_is_cancelled(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0), planned(1))
    meddling = MeddlingStore(store.engine)
    client = Client(meddling, clock=store.clock)
    first = await claim_one(client.engine)
    await client.engine.apply([complete(first)])
    second = await claim_one(client.engine)
    has_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        meddling.before_apply = pause_again  # the settlement; the next call is what follows

    async def pause_again() -> None:
        has_begun.set()
        await may_go_on.wait()

    meddling.before_apply = pause
    settling = asyncio.create_task(client.engine.apply([complete(second)]))
    await has_begun.wait()
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    may_go_on.set()
    await client.engine.close()
    assert [task.id for task in await claim(store.engine)] == [graph.task_id(2)]


class UnreadableGraph(ForwardingEngine):
    """A store that cannot read some notes, and counts the graphs that it reads."""

    unreadable = ""
    reads = 0

    async def read_note(self, name: str) -> Note | None:
        self.reads += name.startswith(GRAPHS)
        if name == self.unreadable:
            raise StorageError("a damaged shard")
        return await super().read_note(name)


async def test_a_workflow_that_cannot_be_read_does_not_keep_the_monitor_from_others(store: WorkflowStore) -> None:
    graphs = sorted([await store.submit(planned(), planned(0)) for _ in range(2)], key=lambda graph: graph.token)
    await store.engine.apply([complete(task) for task in await claim(store.engine)])
    engine = UnreadableGraph(store.engine)
    engine.unreadable = GRAPHS + graphs[0].token
    monitor = Monitor(Client(engine, clock=store.clock), id="m", clock=store.clock, elapsed=store.clock)
    store.clock.advance(400.0)
    with pytest.raises(StorageError, match="damaged shard"):
        await monitor.check()
    assert [task.id for task in await claim(store.engine)] == [graphs[1].task_id(1)]


class UnreadableTask(ForwardingEngine):
    """A store that cannot read one task: it is in a damaged shard, or its result in an object without permission."""

    unreadable = ""

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        if self.unreadable in ids:
            raise StorageError("a damaged shard")
        return await super().get(ids)


async def test_a_result_that_cannot_be_read_does_not_keep_other_tasks_from_starting(store: WorkflowStore) -> None:
    engine = UnreadableTask(store.engine)
    client = Client(engine, clock=store.clock)
    flows = [(await client.workflows.submit("pair", [planned(), planned(0, bound=True)])).graph for _ in range(3)]
    await client.engine.apply([complete(task, b"1") for task in await claim(client.engine, limit=3)])
    engine.unreadable = flows[1].task_id(0)
    assert {task.id for task in await claim(client.engine, limit=3)} == {flows[0].task_id(1), flows[2].task_id(1)}
    (waiting,) = await store.engine.get([flows[1].task_id(1)])
    assert waiting is not None and waiting.status is Status.PENDING


async def test_a_task_fails_whose_results_do_not_fit_into_memory_and_others_start(store: WorkflowStore) -> None:
    """The process is not killed for its memory, and with it the tasks that it runs besides."""
    value, client = b'"%s"' % (b"x" * (PAYLOAD_LIMIT - 2)), store.client
    number = MAX_RESULTS_SIZE // PAYLOAD_LIMIT + 1
    parents = tuple(range(number))
    large = await store.submit(*(planned() for _ in parents), planned(*parents, bound=True))
    small = await store.submit(planned(), planned(0, bound=True))
    tasks = await claim(client.engine, limit=1000)
    await client.engine.apply([complete(task, value) for task in tasks])
    assert [task.id for task in await claim(client.engine, limit=9)] == [small.task_id(1)]
    (failed,) = await store.engine.get([large.task_id(number)])
    assert failed is not None and failed.status is Status.FAILED
    assert "the results of its parents are more than 67,108,864 bytes" in str(failed.error)


@pytest.mark.parametrize("share_parents", [True, False])
async def test_a_claim_takes_only_the_results_that_fit_into_memory(
    store: WorkflowStore, *, share_parents: bool
) -> None:
    value, client = b'"%s"' % (b"x" * (PAYLOAD_LIMIT - 2)), store.client
    parents = tuple(range(2 * MAX_RESULTS_SIZE // PAYLOAD_LIMIT // 5))
    children = [planned(*parents, bound=True)] * (3 if share_parents else 1)
    for _ in range(1 if share_parents else 3):
        await store.submit(*(planned() for _ in parents), *children)
    tasks = await claim(client.engine, limit=1000)
    await client.engine.apply([complete(task, value) for task in tasks])
    first, second = await claim(client.engine, limit=9), await claim(client.engine, limit=9)
    assert (len(first), len({task.id for task in first + second})) == (2, 3)


async def test_the_monitor_does_not_read_a_workflow_that_began_just_now(store: WorkflowStore) -> None:
    engine = UnreadableGraph(store.engine)
    monitor = Monitor(Client(engine, clock=store.clock), id="m", clock=store.clock, elapsed=store.clock)
    store.clock.advance(400.0)
    graph = await store.submit(planned(), planned(0))
    await store.engine.apply([complete(await claim_one(store.engine))])
    await monitor.check()
    assert engine.reads == 0
    store.clock.advance(31.0)
    await monitor.check()
    assert [task.id for task in await claim(store.engine)] == [graph.task_id(1)]


@pytest.mark.parametrize(
    "text", ["0f107", "zzzzzzzz-zzzz-8zzz-azzz-zzzzzzz0f107", "zzzzzzzz-zzzz-8zzz-azzz-zzzzzzzzzz0f107"]
)
async def test_a_text_that_only_ends_like_an_id_is_no_task_of_a_workflow(store: WorkflowStore, text: str) -> None:
    assert node_address(text) is None
    assert len(text) == 36 or not needs_results(text)
    graph = await store.submit(planned())
    with pytest.raises(InvalidWorkflow, match="has no task"):
        await store.client.workflows.replay(graph.id, [text])


async def test_a_user_cannot_submit_a_blocked_task(store: WorkflowStore) -> None:
    with pytest.raises(InvalidTask, match="run_at"):
        await store.client.enqueue("t", {}, run_at=BLOCKED_AT)


async def test_a_blocked_task_is_explained_without_its_graph(store: WorkflowStore) -> None:
    graph = await store.submit(planned(), planned(0))
    chosen = new(0, id=workflow_task_id(graph.token, 7, is_bound=False), run_at=BLOCKED_AT)
    await store.engine.add([chosen])
    for is_damaged in (False, True):
        if is_damaged:
            await store.engine.write_note(GRAPHS + graph.token, b"noise", expected=ANY)
        (task,) = await store.engine.get([chosen.id])
        assert task is not None and task.status is Status.PENDING
        explained = await explain_task(store.engine, task, store.clock.now)
        assert "cannot be read" in str(explained)
