"""The workflows that a process has read: their graphs, and the tasks known to have finished."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat

from qo import notes
from qo.engine import Engine
from qo.errors import DamagedNote
from qo.model import SUBMIT_DEADLINE, Effect, NodeState, Status, WorkflowGraph, effect_of, node_state
from qo.workflows.graph_note import GRAPHS, decode_graph
from qo.workflows.tracked_workflow import TrackedWorkflow

_MAX_NODES = 50_000  # of all cached graphs: 20 to 70 MB
PAGE_SIZES = (1, 8, 64, 500)  # tasks


class WorkflowCache:
    """One per client, on its event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tracked: OrderedDict[str, TrackedWorkflow] = OrderedDict()  # the last used at the end
        self._nodes = 0  # of all of them

    async def load(self, token: str) -> TrackedWorkflow | None:
        """The workflow with its current graph; None if it does not exist or cannot be read."""
        note = await self._engine.read_note(GRAPHS + token)
        if note is None:
            self.forget(token)
            return None
        tracked = self._tracked.get(token)
        if tracked is None or tracked.version != note.version:
            try:
                graph = decode_graph(note)
            except DamagedNote as error:
                notes.report(error)
                return None
            tracked = self._track(token, graph, note.version)
        self._tracked.move_to_end(token)
        while self._nodes > _MAX_NODES and len(self._tracked) > 1:
            self.forget(next(iter(self._tracked)))
        return tracked

    def _track(self, token: str, graph: WorkflowGraph, version: str) -> TrackedWorkflow:
        before = self._tracked.get(token)
        if before is not None and before.is_newer_than(graph):  # a later read was answered first
            return before
        self.forget(token)
        if before is not None and before.is_valid_for(graph):
            before.extend(graph, version)
            tracked = before
        else:
            tracked = TrackedWorkflow(graph, version)
        self._tracked[token] = tracked
        self._nodes += len(graph.nodes)
        return tracked

    def forget(self, token: str) -> None:
        tracked = self._tracked.pop(token, None)
        self._nodes -= 0 if tracked is None else len(tracked.graph.nodes)

    def epoch(self, token: str) -> int | None:
        """The epoch of a workflow when this process last read it; None if the workflow is not cached."""
        tracked = self._tracked.get(token)
        return None if tracked is None else tracked.graph.epoch

    async def read(self, tracked: TrackedWorkflow, indexes: Collection[int]) -> dict[int, NodeState]:
        """The states of tasks; finished ones are cached."""
        graph = tracked.graph
        tasks = await self._engine.get_without_values([graph.task_id(index) for index in indexes])
        states = dict(zip(indexes, map(node_state, tasks), strict=True))
        missing = [index for index, state in states.items() if state.status is None]
        states |= dict.fromkeys(await self._on_their_way(graph, missing), NodeState(Status.PENDING))
        for index, state in states.items():
            tracked.record(index, state)
        return states

    async def _on_their_way(self, graph: WorkflowGraph, missing: Sequence[int]) -> set[int]:
        """The missing tasks that are being submitted, or added by a running task."""
        if not missing:
            return set()
        began = await self._engine.now() - SUBMIT_DEADLINE
        coming = {index for index in missing if graph.stored_from(index) > began}
        adders = {index: node.added_by for index in missing if (node := graph.nodes[index]).added_by is not None}
        late = {index: added_by for index, added_by in adders.items() if index not in coming and added_by is not None}
        unique = sorted({adder for adder, _ in late.values()})
        tasks = await self._engine.get_without_values([graph.task_id(adder) for adder in unique]) if unique else []
        states = dict(zip(unique, map(node_state, tasks), strict=True))
        for index, (adder, attempt) in late.items():
            if states[adder].status is Status.RUNNING and states[adder].attempt == attempt:
                coming.add(index)
        return coming

    async def states(self, tracked: TrackedWorkflow, indexes: Sequence[int] | None = None) -> dict[int, NodeState]:
        """The states of these nodes, or of all."""
        wanted = range(len(tracked.graph.nodes)) if indexes is None else indexes
        states = {index: tracked.known[index] for index in wanted if index in tracked.known}
        unknown = [index for index in wanted if index not in states]
        for start in range(0, len(unknown), PAGE_SIZES[-1]):
            states |= await self.read(tracked, unknown[start : start + PAGE_SIZES[-1]])
        return states

    async def is_replayed(self, tracked: TrackedWorkflow) -> bool:
        """Whether a replay has begun or ended since the workflow was loaded, so that what was read may be outdated."""
        current = await self.load(tracked.graph.token)
        return current is not None and current.graph.epoch != tracked.graph.epoch

    async def may_start(self, token: str, index: int) -> bool:
        """Whether the parents of a task allow it to run now. Raises StorageError."""
        tracked = await self.load(token)
        if tracked is None or index >= len(tracked.graph.nodes):
            return True  # an ordinary task
        node = tracked.graph.nodes[index]
        states = await self.states(tracked, node.parents)
        return all(effect_of(node, parent, states[parent]) is Effect.MET for parent in node.parents)


def page_sizes(tracked: TrackedWorkflow) -> Iterator[int]:
    """How many tasks to read in one request: more, the more of them have finished. The last size is repeated."""
    yield from PAGE_SIZES
    yield from repeat(PAGE_SIZES[-1], len(tracked.graph.nodes))
