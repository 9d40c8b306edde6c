"""Random histories of workflows, checked against rules that are restated here, independently of the model.

Several clients claim and settle the tasks of a random graph. Attempts fail, leases expire, tasks are cancelled and
replayed, running tasks add others, and processes die between a settlement and what follows from it.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress

from qo.client import Client
from qo.client.describe import PlannedTask
from qo.client.workflow_view import WorkflowNodeView
from qo.codec import decode_value
from qo.engine import Engine
from qo.errors import LeaseLost, WrongStatus
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    BLOCKED_AT,
    Binding,
    Change,
    FailureKind,
    GraphNode,
    NewTask,
    ParentFailure,
    PendingKind,
    Status,
    Task,
    WorkflowStatus,
    after_error,
    cancel,
    complete,
    expire,
    fail,
    node_address,
    replay,
    replay_finished,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, task_id
from qo.workflows import WorkflowTracker, open_tokens

_CLIENTS = 3
_LEASE = 30.0  # seconds
_STEPS = 5  # for each task of the workflow
_ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


def planned(
    *parents: int,
    bound: bool = False,
    on_parent_failure: ParentFailure = ParentFailure.CANCEL,
    added_by: tuple[int, int] | None = None,
) -> PlannedTask:
    """A task of a workflow that waits for these indexes. If it is bound, it gets their results as a list."""
    bindings = (Binding(("results",), parents, is_list=True),) if bound and parents else ()
    node = GraphNode(
        type="t", parents=parents, bindings=bindings, on_parent_failure=on_parent_failure, added_by=added_by
    )
    new = NewTask(id=task_id(0), queue="q", type="t", payload=b'{"results":[]}', max_retries=1)
    return PlannedTask(node=node, new=new)


def result_of(index: int, results: Sequence[int | None]) -> int:
    """What the handler of a node returns."""
    return (index + 1 + sum(result or 0 for result in results) * 7) % 1_000_003


class RecordingEngine(ForwardingEngine):
    """A store, and which nodes of each workflow have ended there at least once."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.ended: defaultdict[str, set[int]] = defaultdict(set)
        self.completed: defaultdict[str, set[int]] = defaultdict(set)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        answers = await super().apply(changes)
        for change, done in zip(changes, answers, strict=True):
            address = node_address(change.id)
            if done and address is not None and change.to in _ENDED:
                self.ended[address.token].add(address.node)
                if change.to is Status.COMPLETED:
                    self.completed[address.token].add(address.node)
        return answers


class WorkflowHistory:
    """One random workflow on one store. Behind a server, `record` is the store of the server."""

    def __init__(
        self, engine: Engine, clock: ManualClock, seed: int, *, size: int, record: RecordingEngine | None = None
    ) -> None:
        self._record = record or RecordingEngine(engine)
        self.engine, self.clock = engine if record else self._record, clock
        self._key = str(seed)
        self._dice = random.Random(seed)  # noqa: S311 - repeatable random numbers
        self._clients = [Client(self.engine, clock=clock) for _ in range(_CLIENTS)]
        self._plan = [self._random_task(index) for index in range(self._dice.randint(2, size))]
        self._running: dict[str, Task] = {}
        self.runs: Counter[int] = Counter()

    def _random_task(self, index: int) -> PlannedTask:
        parents = sorted(self._dice.sample(range(index), self._dice.randint(0, min(index, 4))))
        policy = self._dice.choices(tuple(ParentFailure), (6, 2, 2))[0]
        return planned(*parents, bound=self._dice.random() < 0.5, on_parent_failure=policy)

    @property
    def _ended(self) -> set[int]:
        return self._record.ended[self._token]

    @property
    def _completed(self) -> set[int]:
        return self._record.completed[self._token]

    @property
    def _client(self) -> Client:
        return self._dice.choice(self._clients)

    async def run(self, steps: int | None = None) -> None:
        """Submit the workflow, let everything happen to it, and at last let it complete."""
        steps = _STEPS * len(self._plan) if steps is None else steps
        made = await self._client.workflows.submit("random", self._plan, idempotency_key=self._key)
        self._id, self._token = made.graph.id, made.graph.token
        actions = (self._claim, self._settle, self._lose_lease, self._cancel, self._replay, self._add, self._review)
        for _ in range(steps):
            (action,) = self._dice.choices(actions, (8, 9, 1, 1, 1, 1, 1))
            await action()
        await self._settle_all()
        await self._check_rest()
        await self._complete()

    # --- what happens

    async def _claim(self) -> None:
        for task in await claim(self._client.engine, limit=self._dice.randint(1, 4), lease=_LEASE):
            await self._check_start(task)
            self._running[task.id] = task

    async def _settle(self) -> None:
        if not self._running:
            return
        task = self._running.pop(self._dice.choice(sorted(self._running)))
        index = _index(task)
        outcome = self._dice.choices(("complete", "fail", "retry"), (7, 1, 1))[0]
        if outcome == "complete":
            change = complete(task, str(result_of(index, results_in(task))).encode())
        else:
            change = fail(task, "no") if outcome == "fail" else after_error(task, "again", random=0.5, after=0.0)
        # A process may die between the settlement and what follows from it.
        engine = self.engine if self._dice.random() < 0.2 else self._client.engine
        await engine.apply([change])

    async def _lose_lease(self) -> None:
        self.clock.advance(_LEASE + 1.0)
        for task in [self._running.pop(each) for each in sorted(self._running)]:
            await self._client.engine.apply([expire(task, random=0.5, grace=0.0)])
        self.clock.advance(120.0)  # back-offs are over

    async def _cancel(self) -> None:
        index = self._any_node()
        graph = await self._client.workflows.graph(self._id)
        await self._client.engine.apply([cancel(graph.task_id(index))])

    async def _replay(self) -> None:
        graph = await self._client.workflows.graph(self._id)
        index = self._any_node()
        how = self._dice.randrange(4)
        try:
            if how == 0:
                await self._client.workflows.replay(self._id)
            elif how == 1:
                await self._client.workflows.replay(self._id, [index])
            else:
                change = (replay if how == 2 else replay_finished)(graph.task_id(index))
                await self._client.engine.apply([change])
        except WrongStatus:
            pass

    async def _add(self) -> None:
        if not self._running or len(self._plan) > 60:
            return
        task = self._running[self._dice.choice(sorted(self._running))]
        adder = _index(task)
        new = planned(adder, bound=self._dice.random() < 0.5, added_by=(adder, task.attempt))
        with suppress(LeaseLost):  # it was cancelled; what it adds is dropped
            (index,) = await self._client.workflows.add(self._token, [new])
            assert index == len(self._plan)
        self._plan.append(new)

    async def _review(self) -> None:
        await WorkflowTracker(self.engine).review(self._token)

    def _any_node(self) -> int:
        return self._dice.randrange(len(self._plan))

    # --- what must hold

    async def _check_start(self, task: Task) -> None:
        """Every task runs after its parents, and gets their results."""
        index = _index(task)
        node = self._plan[index].node
        self.runs[index] += 1
        allowed = self._ended if node.on_parent_failure is ParentFailure.RUN else self._completed
        late = set(node.parents) - allowed
        if node.added_by is not None:
            late |= {node.added_by[0]} - self._completed
        assert not late, f"task {index} runs before its parents {late}"
        if node.bindings:
            graph = await self._client.workflows.graph(self._id)
            parents = await self.engine.get([graph.task_id(parent) for parent in node.parents])
            expected = [None if each is None or each.result is None else decode_value(each.result) for each in parents]
            assert results_in(task) == expected
            # Also after a replay: a task that needs results waits until all of its parents have ended again.
            may_fail = node.on_parent_failure is ParentFailure.RUN
            ends = _ENDED if may_fail else (Status.COMPLETED,)
            statuses = [None if each is None else each.ended_as for each in parents]
            assert all(status in ends for status in statuses), f"task {index} starts while its parents are {statuses}"

    async def _nodes(self) -> Sequence[WorkflowNodeView]:
        return (await self._clients[0].workflows.read(self._id)).nodes

    async def _settle_all(self) -> None:
        """All processes have stopped, and a monitor has run."""
        await self._lose_lease()
        self._clients = [Client(self.engine, clock=self.clock)]
        await self._monitor()

    async def _monitor(self) -> None:
        """A monitor reviews the workflow, if it is marked as open."""
        for _ in range(2):
            if self._token in await open_tokens(self.engine):
                await self._review()

    async def _check_rest(self) -> None:
        """Each blocked task waits for something, and each task that was cancelled because of a parent has a reason."""
        nodes = await self._nodes()
        tasks = await self.engine.get([node.task_id for node in nodes])
        for node in nodes:
            planned_node = self._plan[node.index].node
            statuses = [nodes[parent].status for parent in node.parents]
            is_met = all(status is Status.COMPLETED for status in statuses)
            if planned_node.on_parent_failure is ParentFailure.RUN:
                is_met = all(status in _ENDED for status in statuses)
            if node.pending_kind is PendingKind.BLOCKED and planned_node.added_by is None:
                assert not is_met, f"task {node.index} is blocked although its parents are {statuses}"
            task = tasks[node.index]
            is_because = task is not None and (task.failure_kind, task.available_at) == (FailureKind.PARENT, BLOCKED_AT)
            if node.status is Status.CANCELLED and is_because and planned_node.added_by is None:
                assert not is_met, f"task {node.index} is cancelled although its parents completed"

    async def _complete(self) -> None:
        """Run everything again from the roots, without failures: each task runs once, and the results are right."""
        client = self._clients[0]
        await self._drain()
        roots = [index for index, each in enumerate(self._plan) if not each.node.parents]
        self.runs.clear()
        self._completed.clear()
        self._ended.clear()
        await client.workflows.replay(self._id, roots)
        await self._drain()
        view = await client.workflows.read(self._id)
        assert view.status is WorkflowStatus.COMPLETED, [(node.index, node.status, node.error) for node in view.nodes]
        live = [node.index for node in view.nodes if node.is_live]
        submitted = [index for index, each in enumerate(self._plan) if each.node.added_by is None]
        assert live == submitted, "tasks added by earlier attempts no longer count"
        assert {index: self.runs[index] for index in live} == dict.fromkeys(live, 1)
        assert await client.workflows.result(self._id) == self._expected(live)

    def _expected(self, live: Sequence[int]) -> object:
        results: dict[int, int] = {}
        for index in live:
            node = self._plan[index].node
            results[index] = result_of(index, [results[parent] for parent in node.parents if node.bindings])
        parents = {parent for index in live for parent in self._plan[index].node.parents}
        last = [results[index] for index in live if index not in parents]
        return last[0] if len(last) == 1 else last

    async def _drain(self) -> None:
        client = self._clients[0]
        while tasks := await claim(client.engine, limit=9, lease=_LEASE):
            for task in tasks:
                await self._check_start(task)
            changes = [complete(task, str(result_of(_index(task), results_in(task))).encode()) for task in tasks]
            assert all(await client.engine.apply(changes))


def _index(task: Task) -> int:
    address = node_address(task.id)
    assert address is not None
    return address.node


def results_in(task: Task) -> list[int | None]:
    results: list[int | None] = decode_value(task.payload)["results"]
    return results
