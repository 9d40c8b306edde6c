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
        await self._meddle("before_add")
        return await super().add(tasks)

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        await self._meddle("before_get")
        tasks = await super().get_without_values(ids)
        await self._meddle("after_get")
        return tasks

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        await self._meddle("before_apply")
        answers = await super().apply(changes)
        await self._meddle("after_apply")
        return answers

    async def _meddle(self, moment: str) -> None:
        meddle: Callable[[], Awaitable[None]] | None = getattr(self, moment)
        setattr(self, moment, None)
        if meddle is not None:
            await meddle()


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
