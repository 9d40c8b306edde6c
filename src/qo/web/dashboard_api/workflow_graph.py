"""A workflow as a graph that can be drawn: each task is a box, and in large workflows each group of tasks."""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from qo.client.workflow_view import WorkflowNodeView, WorkflowSummary, WorkflowView, critical_path, workflow_summary
from qo.clock import iso
from qo.codec import shown_text
from qo.model import PendingKind, Status

MAX_BOXES = 300  # tasks that are drawn one by one
MAX_LINES = 2_000
MAX_GROUPS = 100
MAX_ROWS = 50  # tasks in the table of a larger workflow
_MAX_ERROR_LENGTH = 200  # characters
_MAX_PARENTS = 10  # that a row names

StepState = Literal["missing", "failed", "running", "pending", "cancelled", "blocked", "completed"]
_BY_ATTENTION: tuple[StepState, ...] = ("missing", "failed", "running", "pending", "cancelled", "blocked", "completed")

_STATES: dict[Status | None, StepState] = {
    None: "missing",
    Status.PENDING: "pending",
    Status.RUNNING: "running",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


class GraphBox(Struct, frozen=True, kw_only=True):
    """A task, or a group of tasks. `type` is null for a group of several types; `index` and `task_id` are null for
    groups. `states` counts its tasks by state. Every line leads to a higher `layer`."""

    layer: int
    type: str | None
    index: int | None
    task_id: str | None
    tasks: int
    states: dict[str, int]


class GraphRow(Struct, frozen=True, kw_only=True):
    """A task. `waits_for` are the first of the tasks that it is waiting for, `waits` is their number."""

    index: int
    task_id: str
    type: str
    state: StepState
    attempt: int
    error: str | None
    waits: int
    waits_for: list[int]
    started_at: str | None
    completed_at: str | None
    is_critical: bool


class DrawnWorkflow(WorkflowSummary, frozen=True, kw_only=True):
    """A workflow. `lines` and `critical_path` are positions in `boxes`. `rows` are all tasks, or those of a large
    workflow that need attention first. `dropped` tasks are not shown: the attempt that added them did not complete."""

    boxes: list[GraphBox]
    lines: list[tuple[int, int]]
    is_grouped: bool
    critical_path: list[int]
    critical_tasks: int
    critical_seconds: float
    is_estimate: bool  # some tasks of the critical path are unfinished
    rows: list[GraphRow]
    dropped: int


def draw(view: WorkflowView, now: float) -> DrawnWorkflow:
    live = [node for node in view.nodes if node.is_live]
    layers = _layers(live)
    is_grouped = len(live) > MAX_BOXES or sum(len(node.parents) for node in live) > MAX_LINES
    keys = _group_keys(live, layers) if is_grouped else {node.index: node.index for node in live}
    members = dict[Hashable, list[WorkflowNodeView]]()
    for node in live:
        members.setdefault(keys[node.index], []).append(node)
    positions = {key: at for at, key in enumerate(members)}
    box_of = {node.index: positions[keys[node.index]] for node in live}
    path = critical_path(view.nodes, now)
    return DrawnWorkflow(
        **asdict(workflow_summary(view)),
        boxes=[_box(each, keys[each[0].index], layers, is_group=is_grouped) for each in members.values()],
        lines=_lines(live, box_of),
        is_grouped=is_grouped,
        critical_path=[box for box, _ in groupby(box_of[index] for index in path.indexes)],
        critical_tasks=len(path.indexes),
        critical_seconds=path.seconds,
        is_estimate=path.is_estimate,
        rows=_rows(live, frozenset(path.indexes)),
        dropped=len(view.nodes) - len(live),
    )


def _layers(live: Sequence[WorkflowNodeView]) -> dict[int, int]:
    """Of each node: one more than the highest layer of its parents, which come first."""
    layers = dict[int, int]()
    for node in live:
        layers[node.index] = max((layers[each] + 1 for each in node.parents if each in layers), default=0)
    return layers


def _group_keys(live: Sequence[WorkflowNodeView], layers: dict[int, int]) -> dict[int, Hashable]:
    """Groups of one layer and type, or, if these are too many, of a range of layers."""
    by_type = {node.index: (layers[node.index], node.type) for node in live}
    if len(set(by_type.values())) <= MAX_GROUPS:
        return dict(by_type)
    size = max(layers.values()) // MAX_GROUPS + 1
    return {index: layer // size for index, layer in layers.items()}


def _box(nodes: Sequence[WorkflowNodeView], key: Hashable, layers: dict[int, int], *, is_group: bool) -> GraphBox:
    first, is_single = nodes[0], len(nodes) == 1
    return GraphBox(
        layer=key if is_group and isinstance(key, int) else layers[first.index],
        type=first.type if all(node.type == first.type for node in nodes) else None,
        index=first.index if is_single else None,
        task_id=first.task_id if is_single else None,
        tasks=len(nodes),
        states=dict(Counter[str](_state(node) for node in nodes)),
    )


def _lines(live: Sequence[WorkflowNodeView], box_of: dict[int, int]) -> list[tuple[int, int]]:
    pairs = ((box_of[parent], box_of[node.index]) for node in live for parent in node.parents if parent in box_of)
    return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))


def _rows(live: Sequence[WorkflowNodeView], critical: frozenset[int]) -> list[GraphRow]:
    """In the order of the workflow. Of too many, those that need attention."""
    if len(live) > MAX_BOXES:
        live = sorted(live, key=lambda node: _BY_ATTENTION.index(_state(node)))[:MAX_ROWS]
    return [_row(node, is_critical=node.index in critical) for node in live]


def _row(node: WorkflowNodeView, *, is_critical: bool) -> GraphRow:
    return GraphRow(
        index=node.index,
        task_id=node.task_id,
        type=node.type,
        state=_state(node),
        attempt=node.attempt,
        error=None if node.error is None else shown_text(node.error)[:_MAX_ERROR_LENGTH],
        waits=len(node.waits_for),
        waits_for=list(node.waits_for[:_MAX_PARENTS]),
        started_at=iso(node.started_at),
        completed_at=iso(node.completed_at),
        is_critical=is_critical,
    )


def _state(node: WorkflowNodeView) -> StepState:
    if node.pending_kind is PendingKind.BLOCKED:
        return "blocked"
    return _STATES[node.status]
