"""Tasks of a workflow before its submission, and how they are stored."""

from collections.abc import Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo.model import BLOCKED_AT, FILLS_RESULTS, GraphNode, NewTask, WorkflowGraph


class PlannedTask(Struct, frozen=True, kw_only=True):
    """A task of a workflow before its submission."""

    node: GraphNode
    new: NewTask  # its id and batch are set on submission


def digest_of(planned: Sequence[PlannedTask]) -> str:
    """Of everything that distinguishes one submission from another under the same key."""
    digest = sha256()
    for each in planned:
        new = each.new
        digest.update(msgspec.msgpack.encode((msgspec.to_builtins(each.node), new.queue, new.priority)))
        digest.update(sha256(new.payload).digest())
    return digest.hexdigest()[:32]


def stored_tasks(graph: WorkflowGraph, planned: Sequence[PlannedTask]) -> list[NewTask]:
    return [stored_task(graph, index, each.new) for index, each in enumerate(planned)]


def stored_task(graph: WorkflowGraph, index: int, new: NewTask) -> NewTask:
    """The task as it is stored: blocked, if it has parents."""
    if graph.nodes[index].bindings:
        new = replace(new, needs=tuple(sorted({*new.needs, FILLS_RESULTS})))
    if not graph.nodes[index].parents:
        return replace(new, id=graph.task_id(index), batch=graph.id)
    return replace(new, id=graph.task_id(index), batch=graph.id, run_at=BLOCKED_AT, delay=0.0)
