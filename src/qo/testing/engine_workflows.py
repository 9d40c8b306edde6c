"""The contract of workflows: what they need of a store, and workflows themselves on top of it."""

import asyncio
from collections.abc import Sequence

import pytest

from qo.client import Client
from qo.codec import decode_value
from qo.engine import Engine
from qo.errors import StorageError
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    BLOCKED_AT,
    Added,
    Change,
    FailureKind,
    Filter,
    Guard,
    NewTask,
    ParentFailure,
    PendingKind,
    Status,
    Task,
    WorkflowStatus,
    complete,
    fail,
    run_now,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id
from qo.testing.workflow_histories import WorkflowHistory, planned
from qo.workflows import GRAPHS, OPEN_WORKFLOWS

_NAMES = ("ready", "blocked", "scheduled")


def _release(name: int | str) -> Change:
    return Change(id=task_id(name), guard=Guard.BLOCKED, to=Status.PENDING, delay=0.0)


async def _finish(client: Client, *, limit: int = 100) -> list[Task]:
    """Claim everything that is due and complete it; the result is the number of results in the payload."""
    tasks = await claim(client.engine, limit=limit)
    results = [str(len(decode_value(task.payload)["results"])).encode() for task in tasks]
    await client.engine.apply([complete(task, result) for task, result in zip(tasks, results, strict=True)])
    return tasks


class InterruptedStore(ForwardingEngine):
    """A store that becomes unreachable before the tasks that can run immediately are added."""

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        if any(task.run_at != BLOCKED_AT for task in tasks):
            raise StorageError("the store is away")
        return await super().add(tasks)


class WorkflowContract:
    async def test_a_blocked_task_is_claimed_only_after_its_release(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new("blocked", run_at=BLOCKED_AT, priority=3), new("ready"), new("scheduled", delay=60)])
        assert (await stored(engine, "blocked")).available_at == BLOCKED_AT
        clock.advance(30.0)
        assert [task.id for task in await claim(engine)] == [task_id("ready")]
        answers = await engine.apply([_release(name) for name in _NAMES])
        assert answers == [False, True, False]
        released = await stored(engine, "blocked")
        assert (released.available_at, released.status) == (clock.now, Status.PENDING)
        assert await engine.apply([_release("blocked")]) == [False]
        assert [task.id for task in await claim(engine)] == [task_id("blocked")]
        assert await engine.apply([_release("blocked")]) == [False]

    async def test_a_blocked_task_can_be_cancelled_because_of_its_parent(self, engine: Engine) -> None:
        await engine.add([new(name, run_at=BLOCKED_AT) for name in (0, 1)] + [new(2)])
        changes = [
            Change(
                id=task_id(name),
                guard=Guard.BLOCKED,
                to=Status.CANCELLED,
                error="its parent failed",
                failure_kind=FailureKind.PARENT,
            )
            for name in (0, 2)
        ]
        assert await engine.apply(changes) == [True, False]
        gone = await stored(engine, 0)
        assert (gone.status, gone.failure_kind, gone.error) == (
            Status.CANCELLED,
            FailureKind.PARENT,
            "its parent failed",
        )
        assert gone.available_at == BLOCKED_AT
        again = Change(id=gone.id, guard=Guard.REPLAYABLE, to=Status.PENDING, run_at=BLOCKED_AT, failures=0)
        assert await engine.apply([again, run_now(task_id(1))]) == [True, True]
        assert (await stored(engine, 0)).available_at == BLOCKED_AT
        assert {task.id for task in await claim(engine)} == {task_id(1), task_id(2)}

    async def test_the_kind_of_a_blocked_task_is_kept_until_it_is_claimed(self, engine: Engine) -> None:
        await engine.add([new("told", run_at=BLOCKED_AT)])
        told = Change(
            id=task_id("told"),
            guard=Guard.BLOCKED,
            to=Status.PENDING,
            run_at=BLOCKED_AT,
            error="its parent runs again",
            failure_kind=FailureKind.PARENT_REPLAYED,
        )
        assert await engine.apply([told]) == [True]
        assert await engine.apply([_release("told")]) == [True]
        assert (await claim_one(engine)).failure_kind is FailureKind.PARENT_REPLAYED

    async def test_blocked_tasks_are_a_kind_of_pending_tasks(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new("blocked", run_at=BLOCKED_AT), new("ready"), new("scheduled", delay=60)])
        clock.advance(1.0)
        for kind, name in ((PendingKind.BLOCKED, "blocked"), (PendingKind.SCHEDULED, "scheduled")):
            where = Filter(statuses=(Status.PENDING,), pending=(kind,))
            assert [task.id for task in await engine.find(where, limit=9)] == [task_id(name)]
        later = Filter(statuses=(Status.PENDING,), pending=(PendingKind.BLOCKED, PendingKind.SCHEDULED))
        assert len(await engine.find(later, limit=9)) == 2

    async def test_children_follow_their_parents_and_get_their_results(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        client = Client(engine, clock=clock)
        plan = [planned(), planned(), planned(0, 1, bound=True), planned(2, bound=True)]
        made = await client.workflows.submit("diamond", plan)
        graph = made.graph
        assert [task.id for task in await _finish(client)] == [graph.task_id(0), graph.task_id(1)]
        (joined,) = await _finish(client)
        assert (joined.id, decode_value(joined.payload)) == (graph.task_id(2), {"results": [0, 0]})
        (last,) = await _finish(client)
        assert decode_value(last.payload) == {"results": [2]}
        assert await client.workflows.status(graph.id) is WorkflowStatus.COMPLETED
        assert await client.workflows.result(graph.id) == 1
        assert await engine.notes(OPEN_WORKFLOWS) == []
        assert await client.engine.delete(graph.task_ids()) == [True] * 4
        assert await engine.notes(GRAPHS) == []

    async def test_children_of_a_failed_task_are_cancelled_until_it_is_replayed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        client = Client(engine, clock=clock)
        plan = [planned(), planned(0), planned(1), planned(0, on_parent_failure=ParentFailure.RUN)]
        graph = (await client.workflows.submit("failing", plan)).graph
        await client.engine.apply([fail(await claim_one(client.engine), "no")])
        view = await client.workflows.read(graph.id)
        assert [node.status for node in view.nodes] == [
            Status.FAILED, Status.CANCELLED, Status.CANCELLED, Status.PENDING,
        ]  # fmt: skip
        assert graph.task_id(0) in (view.nodes[1].error or "") and graph.task_id(1) in (view.nodes[2].error or "")
        assert len(await _finish(client)) == 1
        assert await client.workflows.status(graph.id) is WorkflowStatus.FAILED
        await client.replay(graph.task_id(0))
        revived = (await client.workflows.read(graph.id)).nodes
        assert [node.pending_kind for node in revived] == [
            PendingKind.READY, PendingKind.BLOCKED, PendingKind.BLOCKED, None,
        ]  # fmt: skip
        for index in range(3):
            assert [task.id for task in await _finish(client)] == [graph.task_id(index)]
        assert await client.workflows.status(graph.id) is WorkflowStatus.COMPLETED

    async def test_of_two_clients_that_end_the_last_parents_at_once_one_releases_the_child(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        clients = [Client(engine, clock=clock) for _ in range(2)]
        graphs = [(await clients[0].workflows.submit("race", [planned(), planned(), planned(0, 1)])).graph]
        graphs += [(await clients[0].workflows.submit("race", [planned(), planned(), planned(0, 1)])).graph]
        held = {task.id: task for task in await claim(engine)}
        for graph in graphs:
            ends = [complete(held[graph.task_id(index)]) for index in range(2)]
            await asyncio.gather(*(client.engine.apply([end]) for client, end in zip(clients, ends, strict=True)))
        assert {task.id for task in await claim(engine)} == {graph.task_id(2) for graph in graphs}

    async def test_a_submission_under_a_key_is_repeated_and_completed(self, engine: Engine, clock: ManualClock) -> None:
        client = Client(engine, clock=clock)
        plan = [planned(), planned(0)]
        with pytest.raises(StorageError):
            await Client(InterruptedStore(engine), clock=clock).workflows.submit("once", plan, idempotency_key="k")
        assert await claim(engine) == [], "nothing runs before all is stored"
        made = await client.workflows.submit("once", plan, idempotency_key="k")
        assert not made.new
        assert [[task.id for task in await _finish(client)] for _ in range(3)] == [
            [made.graph.task_id(0)], [made.graph.task_id(1)], [],
        ]  # fmt: skip
        assert not (await client.workflows.submit("once", plan, idempotency_key="k")).new
        assert await _finish(client) == []

    async def test_random_workflows_run_in_order_and_lose_nothing(self, engine: Engine, clock: ManualClock) -> None:
        for seed in range(3):
            await WorkflowHistory(engine, clock, seed, size=10).run(steps=60)
