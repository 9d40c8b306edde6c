"""The workflows that a process has read: their graphs, and the tasks known to have finished."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from qo import notes
from qo.engine import Engine
from qo.errors import DamagedNote
from qo.model import (
    ARRIVING,
    SUBMIT_DEADLINE,
    Change,
    Effect,
    NodeState,
    Status,
    WorkflowGraph,
    cancel_child,
    effect_of,
    node_state,
    unblock,
)
from qo.workflows.graph_note import GRAPHS, decode_graph

_MAX_NODES = 50_000  # of all cached graphs: 20 to 70 MB
PAGE_SIZES = (1, 8, 64, 500)  # tasks


class TrackedWorkflow:
    """The cached state of a workflow. It is valid until the epoch of the graph changes."""

    def __init__(self, graph: WorkflowGraph, version: str) -> None:
        self.known: dict[int, NodeState] = {}  # only of tasks that have ended
        # Tasks that are missing, or were cancelled because of a parent. Any process may submit or revive them, so they
        # are used only by `unended`.
        self.revivable: set[int] = set()
        self._positions: dict[int, int] = {}  # by child: how many of its parents are met
        self._ended = 0  # how many of `_order` are known to have ended
        self.extend(graph, version)

    def extend(self, graph: WorkflowGraph, version: str) -> None:
        """Use a graph with more nodes."""
        self.graph, self.version = graph, version
        self.children = graph.children()
        self.adders = frozenset(node.added_by[0] for node in graph.nodes if node.added_by is not None)
        sinks = [index for index, children in enumerate(self.children) if not children]
        self._number_of_sinks, self._ended = len(sinks), 0
        self._order = [*sinks, *(index for index, children in enumerate(self.children) if children)]

    def is_newer_than(self, graph: WorkflowGraph) -> bool:
        """Whether another graph of this workflow is an earlier version of this one."""
        mine = self.graph
        return _is_same(mine, graph) and (mine.epoch, len(mine.nodes)) > (graph.epoch, len(graph.nodes))

    def is_valid_for(self, graph: WorkflowGraph) -> bool:
        """Whether the cached finished tasks are also valid for a later version of the graph.

        All tasks may have been deleted, and the workflow submitted again under the same key, with the same ids.
        """
        return _is_same(self.graph, graph) and self.graph.epoch == graph.epoch

    def record(self, index: int, state: NodeState) -> None:
        """Cache a finished task. For a task that has added others, the attempt must be known too."""
        if state.is_cancelled_by_parent or state.status is None:
            self.revivable.add(index)
        elif state.has_ended and (state.attempt is not None or index not in self.adders):
            self.known[index] = state

    def look(self, child: int, fresh: Mapping[int, NodeState], page_size: int) -> Change | Sequence[int]:
        """The change that a child needs, or the parents to read before that is known; none if it must wait.

        `fresh` are states that were read just now.
        """
        node, position = self.graph.nodes[child], self._positions.get(child, 0)
        parents = node.parents
        while position < len(parents):
            parent = parents[position]
            state = self.known.get(parent) or fresh.get(parent)
            if state is None:
                return parents[position : position + page_size]
            effect = effect_of(node, parent, state)
            if effect is Effect.CANCEL:
                return cancel_child(self.graph, child, parent, state)
            if effect is Effect.WAIT:
                return ()
            position += 1
            if parent in self.known and position == self._positions.get(child, 0) + 1:
                self._positions[child] = position
        return unblock(self.graph, child)

    def unended(self, page_size: int) -> Sequence[int]:
        """Some of the nodes that are not known to have finished, sinks first."""
        order, known, revivable = self._order, self.known, self.revivable
        while self._ended < len(order) and (order[self._ended] in known or order[self._ended] in revivable):
            self._ended += 1
        return order[self._ended : self._ended + page_size]

    def take_revivable(self) -> list[int]:
        """Remove and return the tasks that may have been revived."""
        taken, self.revivable, self._ended = sorted(self.revivable), set(), 0
        return taken

    def may_have_ended(self, ended: Iterable[int]) -> bool:
        """Whether all tasks may have finished, now that these have. A workflow rarely finishes before its sinks."""
        return self._ended >= self._number_of_sinks or any(not self.children[index] for index in ended)


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
        states |= dict.fromkeys(await self._on_their_way(graph, missing), ARRIVING)
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


def _is_same(one: WorkflowGraph, other: WorkflowGraph) -> bool:
    return (one.created_at, one.submission) == (other.created_at, other.submission)
