"""The cached state of one workflow in one process: its graph, and the tasks known to have finished."""

from collections.abc import Iterable, Mapping, Sequence

from qo.model import Change, Effect, NodeState, WorkflowGraph, cancel_child, effect_of, unblock


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
        is_same = mine.created_at == graph.created_at
        return is_same and (mine.epoch, len(mine.nodes)) > (graph.epoch, len(graph.nodes))

    def is_valid_for(self, graph: WorkflowGraph) -> bool:
        """Whether the cached finished tasks are also valid for a later version of the graph.

        All tasks may have been deleted, and the workflow submitted again under the same key, with the same ids.
        """
        return (self.graph.created_at, self.graph.epoch) == (graph.created_at, graph.epoch)

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
