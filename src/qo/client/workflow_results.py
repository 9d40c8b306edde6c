"""Reads the graph of a workflow and its tasks, and waits for its result."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.codec import decode_value, plain_task
from qo.engine import Engine
from qo.errors import DamagedNote, ResultTimeout, TaskFailed, WorkflowNotFound
from qo.model import (
    Status,
    Task,
    WorkflowGraph,
    ended_because,
    is_added,
    live_nodes,
    node_state,
    show,
    sinks,
    token_of,
)
from qo.notes import report
from qo.workflows import GRAPHS, decode_graph

_MIN_POLL, _MAX_POLL = 0.005, 0.25  # seconds between two reads
_PAGE_SIZE = 500  # tasks in one request
_MAX_REQUESTS = 16  # concurrent requests


async def read_tasks(engine: Engine, ids: Sequence[str]) -> list[Task | None]:
    """Tasks without their payloads and results."""
    tasks: list[Task | None] = []
    for start in range(0, len(ids), _PAGE_SIZE):
        tasks += await engine.get_without_values(ids[start : start + _PAGE_SIZE])
    return tasks


async def read_graphs(engine: Engine, tokens: Sequence[str]) -> list[WorkflowGraph]:
    """The graphs that exist. A damaged one is reported."""
    graphs: list[WorkflowGraph] = []
    for start in range(0, len(tokens), _MAX_REQUESTS):
        names = [GRAPHS + token for token in tokens[start : start + _MAX_REQUESTS]]
        for note in await asyncio.gather(*map(engine.read_note, names)):
            try:
                graphs += [] if note is None else [decode_graph(note)]
            except DamagedNote as error:
                report(error)
    return graphs


class GraphReader:
    """Reads the graph of one workflow repeatedly, and decodes it only if it has changed."""

    def __init__(self, engine: Engine, id: str) -> None:
        self._engine, self._id, self._token = engine, id, token_of(id)
        self._version: str | None = None
        self.last: Sequence[int] = ()  # the nodes that no other depends on
        self.submitted: Sequence[int] = ()  # those of them that were submitted with the workflow
        self.has_additions = False

    async def read(self) -> WorkflowGraph:
        """Raises WorkflowNotFound."""
        note = None if self._token is None else await self._engine.read_note(GRAPHS + self._token)
        if note is not None and note.version != self._version:
            self._graph, self._version = decode_graph(note), note.version
            self.last = [index for index, children in enumerate(self._graph.children()) if not children]
            self.submitted = [index for index in self.last if self._graph.nodes[index].added_by is None]
            self.has_additions = any(node.added_by is not None for node in self._graph.nodes)
        if note is None or self._graph.id != self._id:
            raise WorkflowNotFound(f"there is no workflow {show(self._id)}")
        return self._graph


class WorkflowResults:
    def __init__(self, engine: Engine, id: str) -> None:
        self._engine, self._id, self._reader = engine, id, GraphReader(engine, id)

    async def wait(self, timeout: float | None, decode: Callable[[Task], Any] | None = None) -> Any:
        """The result of the task that no other depends on, or the list of the results of such tasks.

        Raises TaskFailed if one of them did not complete, and ResultTimeout.
        """
        until = None if timeout is None else boot_clock() + timeout
        backoff = Backoff(_MIN_POLL, _MAX_POLL, factor=1.5)
        while True:
            ended = await self._ended_sinks()
            if ended is not None:
                return await self._results(ended, decode or _decode)
            pause = backoff.next()
            left = pause if until is None else until - boot_clock()
            if left <= 0:
                raise ResultTimeout(f"workflow {self._id} has not finished")
            await asyncio.sleep(min(pause, left))

    async def _ended_sinks(self) -> Sequence[str] | None:
        """The ids of the sinks if all of them have finished. Most calls read one task."""
        reader = self._reader
        graph = await reader.read()
        last = reader.last
        size, at = 1, 0
        while at < len(reader.submitted):
            ids = [graph.task_id(index) for index in reader.submitted[at : at + size]]
            if not all(node_state(task).has_ended for task in await self._engine.get_without_values(ids)):
                return None
            at, size = at + size, _PAGE_SIZE
        if reader.has_additions:
            if await self._is_open(graph, last[-1]):
                return None
            states = dict(enumerate(map(node_state, await read_tasks(self._engine, graph.task_ids()))))
            last = sinks(graph, live_nodes(graph, states))
            if not all(states[index].has_ended for index in last):
                return None
        if len((await reader.read()).nodes) > len(graph.nodes):
            return None  # one of them added others before it finished
        return [graph.task_id(index) for index in last]

    async def _is_open(self, graph: WorkflowGraph, index: int) -> bool:
        """Whether a task is unfinished and live.

        It is live if every attempt that added it, directly or indirectly, is running or has completed.
        """
        line = [index]
        while (added_by := graph.nodes[line[-1]].added_by) is not None and len(line) < _PAGE_SIZE:
            line.append(added_by[0])
        tasks = await self._engine.get_without_values([graph.task_id(each) for each in line])
        states = dict(zip(line, map(node_state, tasks), strict=True))
        is_live = all(is_added(graph.nodes[each], states) for each in line if graph.nodes[each].added_by is not None)
        return is_live and not states[index].has_ended

    async def _results(self, ids: Sequence[str], decode: Callable[[Task], Any]) -> Any:
        results = []
        for start in range(0, len(ids), _PAGE_SIZE):
            some = ids[start : start + _PAGE_SIZE]
            for task_id, task in zip(some, await self._engine.get(some), strict=True):
                if task is None:
                    raise WorkflowNotFound(f"task {task_id} of the workflow was deleted")
                if task.result is None or task.ended_as is not Status.COMPLETED:
                    raise TaskFailed(task, kind=ended_because(task))
                results.append(decode(plain_task(task)))
        return results[0] if len(results) == 1 else results


def _decode(task: Task) -> Any:
    return None if task.result is None else decode_value(task.result)
