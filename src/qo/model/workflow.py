"""Workflows: tasks that wait for other tasks, as a graph, and the changes that the graph requires.

A task of a workflow is stored like any other. While it waits for its parents it is blocked: pending, and available at
`BLOCKED_AT`. `decide` compares the graph with the states of its tasks and returns the changes that are due: release a
task whose parents have completed, cancel one whose parent failed, block it again when that parent is replayed. Each
change is guarded, and the same states give the same changes, so any process may decide at any time and repeat it.
"""

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from qo.model.change import Change, Guard
from qo.model.task import BLOCKED_AT, UNFINISHED, FailureKind, Status, Task
from qo.model.text import storable_text
from qo.model.workflow_graph import GraphNode, ParentFailure, WorkflowGraph

_PARENT_RUNS = "its parent runs again"  # the error of a task that waits again because a parent was replayed
_STARTED_ALONE = "a user started it without its parents"  # the error of a task that waited


class NodeState(NamedTuple):
    """The state of a task, as far as decisions use it."""

    status: Status | None  # the status before archiving; None: the task is missing
    attempt: int | None = None  # None: not known
    is_blocked: bool = False
    is_cancelled_by_parent: bool = False
    is_arriving: bool = False  # it is not stored yet; if it has parents, it is stored as blocked

    @property
    def has_ended(self) -> bool:
        return self.status not in UNFINISHED


MISSING = NodeState(None)
ARRIVING = NodeState(Status.PENDING, is_arriving=True)
_BLOCKED = NodeState(Status.PENDING, is_blocked=True)
_RELEASED = NodeState(Status.PENDING)
_CANCELLED = NodeState(Status.CANCELLED, is_cancelled_by_parent=True)


def node_state(task: Task | None) -> NodeState:
    if task is None:
        return MISSING
    status = task.ended_as
    return NodeState(
        status,
        task.attempt,
        status is Status.PENDING and task.available_at == BLOCKED_AT,
        status is Status.CANCELLED and task.failure_kind is FailureKind.PARENT and task.available_at == BLOCKED_AT,
    )


class Effect(StrEnum):
    """The effect of one parent's state on a task."""

    MET = "met"
    WAIT = "wait"
    CANCEL = "cancel"


def effect_of(node: GraphNode, parent: int, state: NodeState) -> Effect:
    """A node that was added by an attempt counts only if that attempt completed its task."""
    if state.status in UNFINISHED:
        return Effect.WAIT
    if node.added_by is not None and node.added_by[0] == parent:
        is_met = state.status is Status.COMPLETED and state.attempt == node.added_by[1]
        return Effect.MET if is_met else Effect.CANCEL
    if state.status is Status.COMPLETED or node.on_parent_failure is ParentFailure.RUN:
        return Effect.MET
    return Effect.CANCEL if node.on_parent_failure is ParentFailure.CANCEL else Effect.WAIT


def decide(
    graph: WorkflowGraph,
    states: MutableMapping[int, NodeState],
    replayed: Collection[int] = (),
    nodes: Sequence[int] | None = None,
) -> list[Change]:
    """The changes that are due, for all nodes or for some of them in their order.

    `states` contains these nodes and their parents, and is updated as if the changes were written. Parents come before
    their children, so one pass is enough: a child of a task that is cancelled here is cancelled too. Children of nodes
    that were `replayed` just now wait again if they have not started.
    """
    changes = []
    for index in range(len(graph.nodes)) if nodes is None else nodes:
        change = _change(graph, index, states) or _block_again(graph, index, states, replayed)
        if change is not None:
            changes.append(change)
            states[index] = state_after(change)
    return changes


def _change(graph: WorkflowGraph, index: int, states: Mapping[int, NodeState]) -> Change | None:
    state, node = states[index], graph.nodes[index]
    if not state.is_blocked and not state.is_cancelled_by_parent:
        return None
    waits = False
    for parent in node.parents:
        effect = effect_of(node, parent, states[parent])
        if effect is Effect.CANCEL:
            return cancel_child(graph, index, parent, states[parent]) if state.is_blocked else None
        waits = waits or effect is Effect.WAIT
    if state.is_blocked:
        return None if waits else unblock(graph, index)
    return replay_node(graph, index, guard=Guard.REPLAYABLE, is_blocked=waits)


def _block_again(
    graph: WorkflowGraph, index: int, states: Mapping[int, NodeState], replayed: Collection[int]
) -> Change | None:
    state = states[index]
    if state.status is not Status.PENDING or state.is_blocked or state.is_arriving:
        return None
    if not any(parent in replayed and states[parent].status in UNFINISHED for parent in graph.nodes[index].parents):
        return None
    return wait_again(Change(id=graph.task_id(index), guard=Guard.WAITING, to=Status.PENDING))


def state_after(change: Change) -> NodeState:
    """The state of a task after one of the changes of this module."""
    if change.to is Status.CANCELLED:
        return _CANCELLED
    return _BLOCKED if change.run_at == BLOCKED_AT else _RELEASED


def unblock(graph: WorkflowGraph, index: int) -> Change:
    """Let a blocked task run."""
    node = graph.nodes[index]
    delay = node.delay if node.run_at is None else None
    return Change(id=graph.task_id(index), guard=Guard.BLOCKED, to=Status.PENDING, delay=delay, run_at=node.run_at)


def cancel_child(graph: WorkflowGraph, index: int, parent: int, state: NodeState) -> Change:
    """Cancel a blocked task because of one of its parents."""
    return Change(
        id=graph.task_id(index),
        guard=Guard.BLOCKED,
        to=Status.CANCELLED,
        error=storable_text(_reason(graph, index, parent, state)),
        failure_kind=FailureKind.PARENT,
    )


def _reason(graph: WorkflowGraph, index: int, parent: int, state: NodeState) -> str:
    name = f"{graph.nodes[parent].type} ({graph.task_id(parent)})"
    added_by = graph.nodes[index].added_by
    if added_by is not None and added_by[0] == parent:
        return f"attempt {added_by[1]} of {name} added this task and did not complete"
    if state.status is None:
        return f"its parent {name} is missing: it was deleted, or the submission of the workflow was interrupted"
    return f"its parent {name} {'failed' if state.status is Status.FAILED else 'was cancelled'}"


def replay_node(graph: WorkflowGraph, index: int, *, is_blocked: bool, guard: Guard = Guard.FINISHED) -> Change:
    """Run a finished task again, immediately or after its parents."""
    change = Change(id=graph.task_id(index), guard=guard, to=Status.PENDING, delay=0.0, failures=0)
    if is_blocked:
        return wait_again(change)
    return _marked(change) if graph.nodes[index].parents else change


def wait_again(change: Change) -> Change:
    """The change to pending that makes a task wait for its parents.

    Its failure kind differs from that of a task that was cancelled because of a parent. If a user cancels the task
    while it waits, replaying a parent does not revive it.
    """
    return _marked(replace(change, delay=None, run_at=BLOCKED_AT))


def _marked(change: Change) -> Change:
    """Only an attempt or a cancellation removes this kind: `was_told_to_wait`."""
    return replace(change, error=_PARENT_RUNS, failure_kind=FailureKind.PARENT_REPLAYED)


def mark_blocked(graph: WorkflowGraph, index: int) -> Change:
    """Before a parent of a blocked task is replayed.

    A process that has read the states before the replay may release the task after it. The mark stays, so a worker that
    claims the task checks its parents first.
    """
    return wait_again(Change(id=graph.task_id(index), guard=Guard.BLOCKED, to=Status.PENDING))


def was_told_to_wait(task: Task) -> bool:
    """Whether a parent was replayed since the last attempt of this task.

    The task may have been released before that.
    """
    return task.failure_kind is FailureKind.PARENT_REPLAYED


def start_alone(change: Change) -> Change:
    """The change with which a user starts a blocked task: it is not compared with its parents."""
    return replace(change, error=_STARTED_ALONE, failure_kind=FailureKind.STARTED_ALONE)


def was_started_alone(task: Task) -> bool:
    return task.failure_kind is FailureKind.STARTED_ALONE


def replay_changes(graph: WorkflowGraph, states: Mapping[int, NodeState], start: Iterable[int] = ()) -> list[Change]:
    """The changes that rerun nodes: all that did not complete, or `start` and everything that depends on it.

    Parents come first, so that they are pending when a child is blocked again. Nodes that a replayed task had added are
    not rerun, because the task adds them again.
    """
    live, guard = live_nodes(graph, states), Guard.FINISHED
    if start := set(start):
        again = _with_descendants(graph, start, live)
    else:
        guard = Guard.REPLAYABLE  # a task that was replayed by another process and has completed does not run again
        again = {index for index in live if states[index].status in {Status.FAILED, Status.CANCELLED}}
    changes = []
    for index in sorted(again):
        node = graph.nodes[index]
        effects = (Effect.WAIT if each in again else effect_of(node, each, states[each]) for each in node.parents)
        is_blocked = any(effect is not Effect.MET for effect in effects)
        changes.append(replay_node(graph, index, guard=guard, is_blocked=is_blocked))
    return changes


def _with_descendants(graph: WorkflowGraph, start: set[int], live: set[int]) -> set[int]:
    found = set(start)
    for index, node in enumerate(graph.nodes):
        is_superseded = node.added_by is not None and node.added_by[0] in found
        if index in live and not is_superseded and not found.isdisjoint(node.parents):
            found.add(index)
    return found


def live_nodes(graph: WorkflowGraph, states: Mapping[int, NodeState]) -> set[int]:
    """All nodes except those that were added by an attempt which no longer runs and did not complete its task."""
    live: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if node.added_by is None or (node.added_by[0] in live and is_added(node, states)):
            live.add(index)
    return live


def is_added(node: GraphNode, states: Mapping[int, NodeState]) -> bool:
    """Whether the attempt that added a node runs or has completed its task."""
    if node.added_by is None:
        return False
    state = states[node.added_by[0]]
    return state.attempt == node.added_by[1] and state.status in {Status.RUNNING, Status.COMPLETED}


def sinks(graph: WorkflowGraph, live: set[int]) -> list[int]:
    """The nodes that no other waits for: their results are the result of the workflow."""
    parents = {parent for index in live for parent in graph.nodes[index].parents}
    return sorted(live - parents)


class WorkflowStatus(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"  # a task did not complete, and other tasks wait until it is replayed
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


def workflow_status(graph: WorkflowGraph, states: Mapping[int, NodeState]) -> WorkflowStatus:
    """A workflow has completed if all its sinks have, and is cancelled if none of its tasks failed."""
    live = live_nodes(graph, states)
    ends = [states[index] for index in live if states[index].has_ended]
    has_failed = any(state.status in {None, Status.FAILED} or state.is_cancelled_by_parent for state in ends)
    if len(ends) < len(live):
        is_stuck = all(states[index].is_blocked or states[index].has_ended for index in live)
        is_waiting = is_stuck and any(state.status is not Status.COMPLETED for state in ends)
        return WorkflowStatus.WAITING if is_waiting else WorkflowStatus.RUNNING
    if all(states[index].status is Status.COMPLETED for index in sinks(graph, live)):
        return WorkflowStatus.COMPLETED
    return WorkflowStatus.FAILED if has_failed else WorkflowStatus.CANCELLED
