"""Prepares changes of tasks of workflows: replays are announced, and blocked tasks stay blocked."""

from collections.abc import Sequence

from qo.engine import Engine
from qo.errors import InvalidWorkflow
from qo.model import (
    BLOCKED_AT,
    Change,
    Guard,
    Status,
    WorkflowGraph,
    mark_blocked,
    node_address,
    start_alone,
    wait_again,
)
from qo.workflows.graph_note import extend_graph
from qo.workflows.open_markers import mark_replay

_REPLAYS = frozenset({Guard.REPLAYABLE, Guard.FINISHED})
_APPLY_SIZE = 500  # changes in one request


async def prepare_replay(engine: Engine, token: str, changes: Sequence[Change], replay: str) -> Sequence[Change]:
    """Before tasks run again: invalidate their cached states elsewhere, and keep their children blocked.

    `replay` names the marker that stays until the consequences of the replay are written.
    """
    try:
        graph = await extend_graph(engine, token, (), epoch=1)
    except InvalidWorkflow:
        return changes  # the graph was deleted: these are ordinary tasks
    await mark_replay(engine, token, replay)
    await _mark_children(engine, graph, changes)
    prepared = []
    for change in changes:
        address = node_address(change.id)
        is_child = address is not None and address.token == token and address.node < len(graph.nodes)
        if is_child and is_replay(change) and change.run_at is None and graph.nodes[address.node].parents:  # type: ignore[union-attr]
            change = wait_again(change)  # noqa: PLW2901
        prepared.append(change)
    return prepared


async def _mark_children(engine: Engine, graph: WorkflowGraph, changes: Sequence[Change]) -> None:
    """Make workers that claim a waiting child of a replayed task check its parents again."""
    replayed = {
        address.node
        for change in changes
        if is_replay(change) and (address := node_address(change.id)) and address.token == graph.token
    }
    children = [index for index, node in enumerate(graph.nodes) if not replayed.isdisjoint(node.parents)]
    # Including children that are to be replayed themselves, because they may not have finished.
    marks = [mark_blocked(graph, child) for child in children]
    for start in range(0, len(marks), _APPLY_SIZE):
        await engine.apply(marks[start : start + _APPLY_SIZE])


async def permitted(engine: Engine, changes: Sequence[Change]) -> Sequence[Change]:
    """The changes without those that would let a blocked task run before its parents, except for `run_now`."""
    moved = [
        change.id
        for change in changes
        if (change.guard is Guard.NOT_DUE or (change.guard is Guard.WAITING and _moves(change)))
        and node_address(change.id) is not None
    ]
    if not moved:
        return changes
    tasks = await engine.get_without_values(moved)
    blocked = {task.id for task in tasks if task is not None and task.available_at == BLOCKED_AT}
    return [
        start_alone(change) if change.id in blocked else change
        for change in changes
        if change.id not in blocked or change.guard is Guard.NOT_DUE
    ]


def _moves(change: Change) -> bool:
    return change.run_at is not None or change.delay is not None


def is_replay(change: Change) -> bool:
    return change.to is Status.PENDING and change.guard in _REPLAYS
