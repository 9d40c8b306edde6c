"""Random histories of one workflow in which several processes act at the same time.

Every request of a process takes a random number of turns, so that requests of other processes come in between. A
process may die before or after each request. Everything is decided by one seed.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from qo.client import Client
from qo.engine import Engine
from qo.errors import LeaseLost, StorageError, WrongStatus
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    Change,
    ClaimRequest,
    Guard,
    ParentFailure,
    Status,
    Task,
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
from qo.testing.samples import claim
from qo.testing.workflow_histories import WorkflowHistory, planned, result_of, results_in
from qo.workflows import WorkflowTracker

_LEASE = 30.0  # seconds
_TURNS = (0, 0, 0, 1, 1, 2, 3, 8, 25)
_ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class SlowEngine(ForwardingEngine):
    """The store as one process sees it: each request takes some turns, and the process may die at it."""

    def __init__(self, race: "RaceHistory", engine: Engine, deadliness: float) -> None:
        super().__init__(engine)
        self._race, self._deadliness = race, deadliness
        self.died = asyncio.get_running_loop().create_future()

    async def _turn(self) -> None:
        if self._race.dice.random() < self._deadliness and not self.died.done():
            self.died.set_result(None)
        for _ in range(self._race.dice.choice(_TURNS)):
            await asyncio.sleep(0)
        while self.died.done():
            if self._race.is_over:
                raise asyncio.CancelledError
            await asyncio.get_running_loop().create_future()

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        await self._turn()
        answers = await self.engine.apply(changes)
        for change, done in zip(changes, answers, strict=True):
            if done:
                await self._race.written(self, change)
        await self._turn()
        return answers

    async def claim(self, request: ClaimRequest) -> list[Task]:
        await self._turn()
        tasks = await self.engine.claim(request)
        await self._turn()
        return tasks

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        await self._turn()
        tasks = await self.engine.get(ids)
        await self._turn()
        return tasks

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        await self._turn()
        tasks = await self.engine.get_without_values(ids)
        await self._turn()
        return tasks

    async def read_note(self, name: str) -> Any:
        await self._turn()
        note = await self.engine.read_note(name)
        await self._turn()
        return note

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        await self._turn()
        version = await self.engine.write_note(name, data, expected=expected)
        await self._turn()
        return version

    async def drop_note(self, name: str) -> None:
        await self._turn()
        await self.engine.drop_note(name)
        await self._turn()


class RaceHistory(WorkflowHistory):
    """The processes act at once, and `_complete` of the base class shows at the end that nothing is lost."""

    def __init__(self, engine: Engine, clock: ManualClock, seed: int, *, size: int, deadliness: float = 0.0) -> None:
        super().__init__(engine, clock, seed, size=size)
        self.dice, self._deadliness = self._dice, deadliness
        self.is_over = False
        self._dead: list[asyncio.Task[None]] = []
        self._held: dict[str, Task] = {}  # what processes run, by id
        self._replayed_by: dict[int, SlowEngine] = {}  # by node whose replay is not finished: the process
        self._firm: dict[int, object] = {}  # nodes that were replayed, and have not ended since
        self._excused: set[tuple[int, int]] = set()  # child and parent: the child ran when the parent was replayed

    async def race(self, *, processes: int, steps: int) -> None:
        made = await self._clients[0].workflows.submit("random", self._plan, idempotency_key=self._key)
        self._id, self._token = made.graph.id, made.graph.token
        self._graph = made.graph
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(processes):
                    group.create_task(self._process(steps))
        finally:
            self.is_over = True
            for dead in self._dead:
                dead.cancel()
        await self._finish_race()

    async def _process(self, steps: int) -> None:
        """One process after the other: each that dies is followed by another."""
        while steps > 0:
            engine = SlowEngine(self, self.engine, self._deadliness)
            client = Client(engine, clock=self.clock)
            done = [0]
            acting = asyncio.create_task(self._act(client, engine, steps, done))
            try:
                await asyncio.wait({acting, engine.died}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                acting.cancel()
                raise
            if acting.done():
                acting.result()
            else:
                self._dead.append(acting)
            steps -= done[0] + 1

    async def _act(self, client: Client, engine: SlowEngine, steps: int, done: list[int]) -> None:
        actions = (self._start, self._end, self._lose, self._stop, self._run_again, self._extend, self._check)
        for _ in range(steps):
            (action,) = self.dice.choices(actions, (9, 9, 1, 1, 2, 1, 1))
            with suppress(WrongStatus, LeaseLost, StorageError):
                await action(client, engine)
            done[0] += 1

    # --- what processes do

    async def _start(self, client: Client, _: SlowEngine) -> None:
        firm = dict(self._firm)
        for task in await claim(client.engine, limit=self.dice.randint(1, 3), lease=_LEASE):
            index = self._node(task.id)
            parents = self._plan[index].node.parents if index < len(self._plan) else ()
            for parent in parents:
                is_firm = parent in firm and self._firm.get(parent) is firm[parent]
                assert not is_firm or (index, parent) in self._excused, (
                    f"task {index} starts although its parent {parent} was replayed before and has not ended"
                )
            late = {each for each in parents if each not in self._allowed(index)}
            assert not late, f"task {index} runs before its parents {late}"
            self._held[task.id] = task

    def _allowed(self, index: int) -> set[int]:
        is_run = self._plan[index].node.on_parent_failure is ParentFailure.RUN
        return self._ended if is_run else self._completed

    async def _end(self, client: Client, _: SlowEngine) -> None:
        if not self._held:
            return
        task = self._held.pop(self.dice.choice(sorted(self._held)))
        outcome = self.dice.choices(("complete", "fail", "retry"), (7, 2, 1))[0]
        if outcome == "complete":
            change = complete(task, str(result_of(self._node(task.id), results_in(task))).encode())
        else:
            change = fail(task, "no") if outcome == "fail" else after_error(task, "again", random=0.5, after=0.0)
        await client.engine.apply([change])

    async def _lose(self, client: Client, _: SlowEngine) -> None:
        if self._held:
            task = self._held.pop(self.dice.choice(sorted(self._held)))
            self.clock.advance(_LEASE + 1.0)
            await client.engine.apply([expire(task, random=0.5, grace=0.0)])
            self.clock.advance(60.0)

    async def _stop(self, client: Client, _: SlowEngine) -> None:
        await client.engine.apply([cancel(self._graph.task_id(self._submitted_node()))])

    async def _run_again(self, client: Client, engine: SlowEngine) -> None:
        index, how = self._submitted_node(), self.dice.randrange(4)
        try:
            if how == 0:
                await client.workflows.replay(self._id)
            elif how == 1:
                await client.workflows.replay(self._id, [index])
            else:
                await client.engine.apply([(replay if how == 2 else replay_finished)(self._graph.task_id(index))])
        finally:
            if not engine.died.done():
                for node in [node for node, by in self._replayed_by.items() if by is engine]:
                    del self._replayed_by[node]
                    self._firm[node] = object()
                    await self._excuse_running_children(node)

    async def _extend(self, client: Client, _: SlowEngine) -> None:
        if not self._held or len(self._plan) > 60:
            return
        task = self._held[self.dice.choice(sorted(self._held))]
        adder = self._node(task.id)
        new = planned(adder, added_by=(adder, task.attempt))
        # Another process may extend the graph at the same time, so the index is known only from the graph.
        try:
            await client.workflows.add(self._token, [new])
        finally:
            graph = await self._clients[0].workflows.graph(self._id)
            self._plan += [planned(*node.parents, added_by=node.added_by) for node in graph.nodes[len(self._plan) :]]

    async def _check(self, client: Client, _: SlowEngine) -> None:
        await WorkflowTracker(client.engine).review(self._token)

    def _node(self, task_id: str) -> int:
        address = node_address(task_id)
        assert address is not None
        return address.node

    def _submitted_node(self) -> int:
        return self.dice.randrange(len(self._graph.nodes))

    # --- what is true

    async def written(self, engine: SlowEngine, change: Change) -> None:
        """A change was written."""
        index = self._node(change.id)
        if change.to in _ENDED:
            self._firm.pop(index, None)
            self._replayed_by.pop(index, None)
            self._excused = {pair for pair in self._excused if pair[0] != index}
        elif change.guard in {Guard.REPLAYABLE, Guard.FINISHED}:
            self._replayed_by[index] = engine
            await self._excuse_running_children(index)

    async def _excuse_running_children(self, index: int) -> None:
        """A task that runs while its parent is replayed goes on, also with another attempt."""
        children = [at for at, each in enumerate(self._plan) if index in each.node.parents]
        graph = await self._clients[0].workflows.graph(self._id)
        tasks = await self.engine.get([graph.task_id(child) for child in children])
        self._excused |= {
            (child, index)
            for child, task in zip(children, tasks, strict=True)
            if task is not None and task.status is Status.RUNNING
        }

    async def _finish_race(self) -> None:
        graph = await self._clients[0].workflows.graph(self._id)
        self._plan += [planned(*node.parents, added_by=node.added_by) for node in graph.nodes[len(self._plan) :]]
        self.clock.advance(1000.0)
        for task in await self.engine.get(graph.task_ids()):
            if task is not None and task.status is Status.RUNNING:
                await self.engine.apply([expire(task, random=0.5, grace=0.0)])
        self._running.clear()
        self._clients = [Client(self.engine, clock=self.clock)]
        self.clock.advance(1000.0)
        await self._monitor()
        await self._check_rest()
        await self._complete()
