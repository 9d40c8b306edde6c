"""Fills the payload of a task with the results of its parents, before a worker gets the task."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from qo.codec import decode_value, is_sealed, sealed_key_id
from qo.errors import EncryptedValue, InvalidWorkflow
from qo.model import (
    Binding,
    Effect,
    GraphNode,
    ParentFailure,
    Status,
    Task,
    WorkflowGraph,
    effect_of,
    node_state,
    was_started_alone,
)
from qo.workflows.workflow_cache import WorkflowCache

_RAW = b"\x00"  # the first byte of stored raw data; see codec


class ParentRunsError(Exception):
    """A parent of a task was replayed and has not completed. The task must wait for it again."""


def wanted_parents(graph: WorkflowGraph, index: int, task: Task) -> dict[int, str]:
    """The tasks whose results a task needs: their ids by index.

    None if only a client with the key can fill its payload.
    """
    if is_sealed(task.payload) or index >= len(graph.nodes):
        return {}
    bound = {parent for binding in graph.nodes[index].bindings for parent in binding.parents}
    return {parent: graph.task_id(parent) for parent in sorted(bound)}


async def with_results(
    cache: WorkflowCache, graph: WorkflowGraph | None, index: int, task: Task, parents: Mapping[int, Task | None]
) -> Task:
    """The task with the results of its parents in its payload. `parents` are those of `wanted_parents`, by index.

    A parent that did not complete counts as the result None. Raises StorageError, EncryptedValue if this process has no
    key for a result, ParentRunsError if a parent was replayed and has not completed, and InvalidWorkflow, which is
    permanent.
    """
    if is_sealed(task.payload):
        return task  # only a client with the key can fill it
    if graph is None or index >= len(graph.nodes):
        raise InvalidWorkflow("the graph of its workflow no longer exists, so its arguments are unknown")
    node = graph.nodes[index]
    results: dict[int, msgspec.Raw] = {}
    for number, parent in parents.items():
        if parent is None and node.on_parent_failure is not ParentFailure.RUN:
            raise InvalidWorkflow(f"its parent {graph.task_id(number)} was deleted, and with it the result")
        if not _is_met(node, number, parent):
            # Without a replay, this means that a user started this task without the parent.
            current = None if was_started_alone(task) else await cache.load(graph.token)
            if current is not None and current.graph.epoch:
                raise ParentRunsError
        results[number] = _argument(parent)
    return replace(task, payload=fill(task.payload, node.bindings, results))


def _is_met(node: GraphNode, number: int, parent: Task | None) -> bool:
    if parent is not None and parent.status is Status.COMPLETED and node.added_by is None:
        return True  # there may be 10,000 of these
    return parent is None or effect_of(node, number, node_state(parent)) is Effect.MET


def _argument(parent: Task | None) -> msgspec.Raw:
    """A result as JSON. Raw data is base64, as it is in the payloads of other tasks."""
    if parent is None or parent.result is None or parent.ended_as is not Status.COMPLETED:
        return msgspec.Raw(b"null")
    if is_sealed(parent.result):
        raise EncryptedValue(sealed_key_id(parent.result))
    if parent.result[:1] == _RAW:
        return msgspec.Raw(b'"' + b64encode(parent.result[1:]) + b'"')
    return msgspec.Raw(parent.result)


def fill(payload: bytes, bindings: Sequence[Binding], results: Mapping[int, msgspec.Raw]) -> bytes:
    """The payload with results at the places of the bindings. Results are copied as text, regardless of their size."""
    value = decode_value(payload)
    for binding in bindings:
        found = [results[parent] for parent in binding.parents]
        value = _put(value, binding.path, found if binding.is_list else found[0])
    return msgspec.json.encode(value)


def _put(value: Any, path: Sequence[str | int], found: Any) -> Any:
    if not path:
        return found
    try:
        value[path[0]] = _put(value[path[0]], path[1:], found)
    except (LookupError, TypeError) as error:
        raise InvalidWorkflow(f"its payload has no field {path[0]!r} for a result of its parents") from error
    return value
