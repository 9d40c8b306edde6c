"""A store with a client and a monitor, for tests of workflows."""

from collections.abc import Awaitable, Callable, Sequence

from qo.client import Client
from qo.client.describe import PlannedTask
from qo.engine import Engine
from qo.forwarding_engine import ForwardingEngine
from qo.model import Added, Change, NewTask, Status, Task, WorkflowGraph
from qo.monitor import Monitor
from qo.testing.clock import ManualClock


class MeddlingStore(ForwardingEngine):
    """A store in which other processes act before or after the next call of a method. Each function is called once."""

    before_add: Callable[[], Awaitable[None]] | None = None
    before_get: Callable[[], Awaitable[None]] | None = None
    after_get: Callable[[], Awaitable[None]] | None = None
    before_apply: Callable[[], Awaitable[None]] | None = None
    after_apply: Callable[[], Awaitable[None]] | None = None

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        meddle, self.before_add = self.before_add, None
        if meddle is not None:
            await meddle()
        return await super().add(tasks)

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        meddle, self.before_get = self.before_get, None
        if meddle is not None:
            await meddle()
        tasks = await super().get_without_values(ids)
        meddle, self.after_get = self.after_get, None
        if meddle is not None:
            await meddle()
        return tasks

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        meddle, self.before_apply = self.before_apply, None
        if meddle is not None:
            await meddle()
        answers = await super().apply(changes)
        meddle, self.after_apply = self.after_apply, None
        if meddle is not None:
            await meddle()
        return answers


class WorkflowStore:
    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine, self.clock = engine, clock
        self.client = Client(self.engine, clock=self.clock)
        self.monitor = Monitor(self.client, id="m", clock=self.clock, elapsed=self.clock)

    async def submit(self, *tasks: PlannedTask) -> WorkflowGraph:
        return (await self.client.workflows.submit("flow", tasks)).graph

    async def check(self) -> None:
        """Let the monitor check after a pause in which every interval ends."""
        self.clock.advance(400.0)
        await self.monitor.check()

    async def graph(self, graph: WorkflowGraph) -> WorkflowGraph:
        """The graph as it is now."""
        return await self.client.workflows.graph(graph.id)

    async def statuses(self, graph: WorkflowGraph) -> list[Status | None]:
        return [node.status for node in (await self.client.workflows.read(graph.id)).nodes]
