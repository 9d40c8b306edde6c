"""Reads the results of parents for claimed tasks: each parent once, and only as much as fits into memory."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from qo.engine import Engine, get_in_steps
from qo.errors import InvalidWorkflow, StorageError
from qo.model import NodeAddress, Task, WorkflowGraph, node_address
from qo.workflows.result_arguments import wanted_parents
from qo.workflows.workflow_cache import WorkflowCache

MAX_RESULTS_SIZE = 64 * 1024 * 1024  # bytes of the results in one payload; a handler needs several times as much memory
_MAX_REQUESTS = 16  # concurrent reads of graphs, and of the parents of different tasks


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
