"""Fills the payload of a task with the results of its parents, before a worker gets the task."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from qo.codec import decode_value, is_sealed, sealed_key_id
from qo.engine import Engine, get_in_steps
from qo.errors import EncryptedValue, InvalidWorkflow
from qo.model import Binding, Effect, ParentFailure, Status, Task, effect_of, node_state, was_started_alone
from qo.workflows.tracker import WorkflowTracker

_RAW = b"\x00"  # how stored raw data begins; see codec


class ParentRunsError(Exception):
    """A parent of a task was replayed and has not completed. The task must wait for it again."""


async def with_results(engine: Engine, tracker: WorkflowTracker, token: str, index: int, task: Task) -> Task:
    """The task with the results of its parents in its payload.

    A parent that did not complete counts as the result None. Raises StorageError, EncryptedValue if this process has
    no key for a result, ParentRunsError if a parent was replayed and has not completed, and InvalidWorkflow for good.
    """
    if is_sealed(task.payload):
        return task  # only a client with the key can fill it, and does so itself
    graph = await tracker.graph(token, index)
    if graph is None:
        raise InvalidWorkflow("the graph of its workflow no longer exists, so that its arguments are not known")
    node = graph.nodes[index]
    bindings = node.bindings
    wanted = sorted({parent for binding in bindings for parent in binding.parents})
    results: dict[int, msgspec.Raw] = {}
    numbers = iter(wanted)
    async for some in get_in_steps(engine, [graph.task_id(parent) for parent in wanted]):
        for parent, number in zip(some, islice(numbers, len(some)), strict=True):
            if parent is None and node.on_parent_failure is not ParentFailure.RUN:
                raise InvalidWorkflow(f"its parent {graph.task_id(number)} was deleted, and with it the result")
            if parent is not None and effect_of(node, number, node_state(parent)) is not Effect.MET:
                # Without a replay, this means that a user started this task without the parent.
                current = None if was_started_alone(task) else await tracker.load(token)
                if current is not None and current.graph.epoch:
                    raise ParentRunsError
            results[number] = _argument(parent)
    return replace(task, payload=fill(task.payload, bindings, results))


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
    """The payload with results at the places of the bindings. Results are copied as text, whatever their size."""
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
        raise InvalidWorkflow(f"its payload has no place {path[0]!r} for a result of its parents") from error
    return value
