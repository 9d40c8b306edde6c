"""Results of parents as arguments: reads them for claimed tasks, and fills them into the payloads before a worker gets
the tasks. Each parent is read once, and only as much as fits into memory.
"""

import asyncio
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from qo.codec import decode_value, is_sealed, sealed_key_id
from qo.engine import Engine, get_in_steps
from qo.errors import EncryptedValue, InvalidWorkflow, StorageError
from qo.model import (
    Binding,
    Effect,
    GraphNode,
    NodeAddress,
    ParentFailure,
    Status,
    Task,
    WorkflowGraph,
    effect_of,
    node_address,
    node_state,
    was_started_alone,
)
from qo.workflows.workflow_cache import WorkflowCache

MAX_RESULTS_SIZE = 64 * 1024 * 1024  # bytes of the results in one payload; a handler needs several times as much memory
_MAX_REQUESTS = 16  # concurrent reads of graphs, and of the parents of different tasks
_RAW = b"\x00"  # the first byte of stored raw data; see codec


class Parents(NamedTuple):
    """The parents of one task whose results it needs."""

    graph: WorkflowGraph | None
    tasks: Mapping[int, Task | None]  # by index
    size: int  # bytes of their results


class LaterClaim(Exception):
    """The results of other tasks of the same claim use up the memory."""


ParentsOrReason: TypeAlias = Parents | StorageError | InvalidWorkflow | LaterClaim


def address_of(task: Task) -> NodeAddress | None:
    """The place of a task in its workflow; None if only its id looks like it."""
    address = node_address(task.id)
    return address if address is not None and task.batch is not None and task.batch.endswith(address.token) else None


class ParentReader:
    def __init__(self, engine: Engine, cache: WorkflowCache) -> None:
        self._engine, self._cache = engine, cache

    async def read(self, tasks: Sequence[Task]) -> dict[str, ParentsOrReason]:
        """By the id of each task: its parents, or why it cannot have them. Other tasks are not affected by that."""
        together = await self._read(tasks)
        if isinstance(together, dict):
            found: dict[str, ParentsOrReason] = {**together}
        elif len(tasks) == 1:
            found = {tasks[0].id: together}
        else:
            found = await self._read_alone(tasks, 1 if isinstance(together, InvalidWorkflow) else _MAX_REQUESTS)
        size = 0
        for task_id, parents in found.items():
            if isinstance(parents, Parents):
                size += parents.size
                if parents.size < size > MAX_RESULTS_SIZE:
                    found[task_id] = LaterClaim()
        return found

    async def _read_alone(self, tasks: Sequence[Task], number: int) -> dict[str, ParentsOrReason]:
        found: dict[str, ParentsOrReason] = {}
        size = 0
        for start in range(0, len(tasks), number):
            some = tasks[start : start + number]
            if size > MAX_RESULTS_SIZE:
                found.update((task.id, LaterClaim()) for task in some)
                continue
            for task, parents in zip(some, await asyncio.gather(*(self._read([task]) for task in some)), strict=True):
                found[task.id] = parents[task.id] if isinstance(parents, dict) else parents
                size += parents[task.id].size if isinstance(parents, dict) else 0
        return found

    async def _read(self, tasks: Sequence[Task]) -> dict[str, Parents] | StorageError | InvalidWorkflow:
        try:
            addressed = [(task, address) for task in tasks if (address := address_of(task))]
            graphs = await self._graphs(sorted({address.token for _, address in addressed}))
            wanted = {
                task.id: wanted_parents(graphs[token], index, task)
                for task, (token, index) in addressed
                if token in graphs
            }
            ids = list({parent: None for parents in wanted.values() for parent in parents.values()})
            found: dict[str, Task | None] = {}
            size = 0
            async for some in get_in_steps(self._engine, ids):
                found.update(zip(ids[len(found) :], some, strict=False))
                size += sum(map(_size, some))
                if size > MAX_RESULTS_SIZE:
                    return InvalidWorkflow(
                        f"the results of its parents are more than {MAX_RESULTS_SIZE:,} bytes; "
                        "store the data elsewhere and return references"
                    )
        except StorageError as error:
            return error
        parents = {task.id: Parents(None, {}, 0) for task in tasks}
        for task, (token, _) in addressed:
            if token in graphs:
                its = {index: found[parent] for index, parent in wanted[task.id].items()}
                parents[task.id] = Parents(graphs[token], its, sum(map(_size, its.values())))
        return parents

    async def _graphs(self, tokens: Sequence[str]) -> dict[str, WorkflowGraph]:
        """By token. A cached graph may belong to an earlier workflow with the same key, which was deleted."""
        graphs: dict[str, WorkflowGraph] = {}
        for start in range(0, len(tokens), _MAX_REQUESTS):
            for tracked in await asyncio.gather(*map(self._cache.load, tokens[start : start + _MAX_REQUESTS])):
                if tracked is not None:
                    graphs[tracked.graph.token] = tracked.graph
        return graphs


def _size(task: Task | None) -> int:
    return 0 if task is None else len(task.result or b"")


# --- filling payloads


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
