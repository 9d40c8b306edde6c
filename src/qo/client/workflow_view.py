"""A workflow as the API, the command line and the dashboard show it: its tasks with their current states."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from qo.model import (
    NodeState,
    PendingKind,
    Status,
    Task,
    WorkflowGraph,
    WorkflowStatus,
    live_nodes,
    node_state,
    pending_kind,
    workflow_status,
)


class WorkflowNodeView(Struct, frozen=True, kw_only=True):
    """One task of a workflow, as it is now."""

    index: int
    task_id: str
    type: str
    parents: tuple[int, ...]
    on_parent_failure: str
    status: Status | None  # None: the task is missing
    pending_kind: PendingKind | None = None  # blocked: it waits for some of its parents
    waits_for: tuple[int, ...] = ()  # the parents that have not ended
    is_live: bool = True  # False: it was added by an attempt that did not complete
    added_by: int | None = None
    attempt: int = 0
    error: str | None = None
    created_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None


class WorkflowView(Struct, frozen=True, kw_only=True):
    """A workflow and its tasks, as they are now."""

    id: str
    name: str
    status: WorkflowStatus
    created_at: float
    idempotency_key: str | None
    counts: dict[str, int]  # of live tasks by status; `blocked` is counted apart from `pending`
    nodes: tuple[WorkflowNodeView, ...]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def view_of(graph: WorkflowGraph, tasks: Sequence[Task | None], now: float) -> WorkflowView:
    states = dict(enumerate(map(node_state, tasks)))
    live = live_nodes(graph, states)
    nodes = tuple(
        _node_view(graph, index, task, states, now, is_live=index in live) for index, task in enumerate(tasks)
    )
    counts = Counter(_word(node) for node in nodes if node.is_live)
    return WorkflowView(
        id=graph.id,
        name=graph.name,
        status=workflow_status(graph, states),
        created_at=graph.created_at,
        idempotency_key=graph.key,
        counts=dict(counts),
        nodes=nodes,
    )


def _word(node: WorkflowNodeView) -> str:
    if node.pending_kind is PendingKind.BLOCKED:
        return node.pending_kind.value
    return "missing" if node.status is None else node.status.value


def _node_view(
    graph: WorkflowGraph, index: int, task: Task | None, states: dict[int, NodeState], now: float, *, is_live: bool
) -> WorkflowNodeView:
    node = graph.nodes[index]
    is_blocked = states[index].is_blocked
    return WorkflowNodeView(
        index=index,
        task_id=graph.task_id(index),
        type=node.type,
        parents=node.parents,
        on_parent_failure=node.on_parent_failure.value,
        status=None if task is None else task.ended_as,
        pending_kind=None if task is None else pending_kind(task, now),
        waits_for=tuple(each for each in node.parents if is_blocked and states[each].status is not Status.COMPLETED),
        is_live=is_live,
        added_by=None if node.added_by is None else node.added_by[0],
        attempt=0 if task is None else task.attempt,
        error=None if task is None else task.error,
        created_at=None if task is None else task.created_at,
        started_at=None if task is None else task.started_at,
        completed_at=None if task is None else task.completed_at,
    )
