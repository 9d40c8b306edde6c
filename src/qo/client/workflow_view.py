"""A workflow as the API, the command line and the dashboard show it: its tasks, its JSON, and its critical path."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct
from msgspec.structs import asdict

from qo.clock import iso
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

_DEFAULT_DURATION = 1.0  # seconds, if no task of the workflow has finished


class WorkflowNodeView(Struct, frozen=True, kw_only=True):
    """One task of a workflow, as it is now."""

    index: int
    task_id: str
    type: str
    parents: tuple[int, ...]
    on_parent_failure: str
    status: Status | None  # None: the task is missing
    pending_kind: PendingKind | None = None  # blocked: it is waiting for some of its parents
    waits_for: tuple[int, ...] = ()  # the parents that have not finished
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


class WorkflowNodeDocument(Struct, frozen=True, kw_only=True):
    """One task. `parents` and `waits_for` are indexes of other tasks; `waits_for` are the parents that have not
    completed. `status` is null if the task was deleted or never stored. `is_live` is false if an attempt that did not
    complete has added it."""

    index: int
    task_id: str
    type: str
    status: Status | None
    pending_kind: PendingKind | None
    parents: list[int]
    waits_for: list[int]
    on_parent_failure: str
    is_live: bool
    added_by: int | None
    attempt: int
    error: str | None
    created_at: str | None
    started_at: str | None
    completed_at: str | None


class WorkflowSummary(Struct, frozen=True, kw_only=True):
    """A workflow without its tasks. `counts` are tasks by status; `blocked` is counted apart from `pending`."""

    id: str
    name: str
    status: WorkflowStatus
    created_at: str | None
    idempotency_key: str | None
    total: int
    counts: dict[str, int]


class WorkflowDocument(WorkflowSummary, frozen=True, kw_only=True):
    """A workflow and its tasks."""

    nodes: list[WorkflowNodeDocument]


def workflow_summary(view: WorkflowView) -> WorkflowSummary:
    return WorkflowSummary(
        id=view.id,
        name=view.name,
        status=view.status,
        created_at=iso(view.created_at),
        idempotency_key=view.idempotency_key,
        total=view.total,
        counts=view.counts,
    )


def workflow_document(view: WorkflowView) -> WorkflowDocument:
    return WorkflowDocument(**asdict(workflow_summary(view)), nodes=[_node(node) for node in view.nodes])


def _node(node: WorkflowNodeView) -> WorkflowNodeDocument:
    return WorkflowNodeDocument(
        index=node.index,
        task_id=node.task_id,
        type=node.type,
        status=node.status,
        pending_kind=node.pending_kind,
        parents=list(node.parents),
        waits_for=list(node.waits_for),
        on_parent_failure=node.on_parent_failure,
        is_live=node.is_live,
        added_by=node.added_by,
        attempt=node.attempt,
        error=node.error,
        created_at=iso(node.created_at),
        started_at=iso(node.started_at),
        completed_at=iso(node.completed_at),
    )


class CriticalPath(Struct, frozen=True, kw_only=True):
    indexes: tuple[int, ...]  # of its tasks, in order
    seconds: float
    is_estimate: bool  # some of its tasks have not finished


def critical_path(nodes: Sequence[WorkflowNodeView], now: float) -> CriticalPath:
    """The longest chain of dependent live tasks.

    An unfinished task counts with the mean duration of its type in this workflow, or of all types; a running task
    counts with at least the time since its start. Waiting times between tasks do not count.
    """
    durations = _durations(nodes, now)
    lengths = dict[int, tuple[float, int]]()  # seconds and tasks of the longest chain that ends with a node
    previous = dict[int, int]()
    for node in nodes:  # parents come before their children
        if node.is_live:
            parents = [each for each in node.parents if each in lengths]
            longest = max(parents, key=lambda each: lengths[each], default=None)
            seconds, tasks = (0.0, 0) if longest is None else lengths[longest]
            lengths[node.index] = (seconds + durations[node.index], tasks + 1)
            if longest is not None:
                previous[node.index] = longest
    last = max(lengths, key=lambda each: lengths[each], default=None)
    total, path = 0.0 if last is None else lengths[last][0], list[int]()
    while last is not None:
        path.append(last)
        last = previous.get(last)
    indexes = tuple(reversed(path))
    return CriticalPath(
        indexes=indexes, seconds=total, is_estimate=any(nodes[each].completed_at is None for each in indexes)
    )


def _durations(nodes: Sequence[WorkflowNodeView], now: float) -> list[float]:
    known = [_duration(node) for node in nodes]
    by_type = defaultdict[str, list[float]](list)
    for node, seconds in zip(nodes, known, strict=True):
        if seconds is not None:
            by_type[node.type].append(seconds)
    means = {type: fmean(each) for type, each in by_type.items()}
    mean = fmean(means.values()) if means else _DEFAULT_DURATION
    return [
        max(means.get(node.type, mean), _elapsed(node, now)) if seconds is None else seconds
        for node, seconds in zip(nodes, known, strict=True)
    ]


def _duration(node: WorkflowNodeView) -> float | None:
    """The duration of the last attempt of a finished task; 0 for a task that was cancelled before it started."""
    if node.completed_at is None:
        return None
    return 0.0 if node.started_at is None else max(0.0, node.completed_at - node.started_at)


def _elapsed(node: WorkflowNodeView, now: float) -> float:
    return 0.0 if node.started_at is None else now - node.started_at
