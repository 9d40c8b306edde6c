"""The note with the graph of a workflow.

A graph is written once and then only extended. It contains types and names of arguments, but no payload.
"""

import asyncio
import zlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote, InvalidWorkflow, StorageError
from qo.model import (
    MAX_WORKFLOW_EDGES,
    MAX_WORKFLOW_TASKS,
    UNREADABLE,
    Binding,
    GraphNode,
    Note,
    ParentFailure,
    WorkflowGraph,
)
from qo.notes import Instant

GRAPHS = "workflows/"
_FORMAT = b"qo-workflow-1:"
_MAX_NOTE_SIZE = 512 * 1024  # bytes; a server accepts notes of up to 1 MiB
_MAX_DECODED_SIZE = 64 * 1024 * 1024  # bytes; more would be damage
_CONFLICT_DEADLINE = 60.0  # seconds in which a change of a graph must succeed while other processes change it too
_MIN_CONFLICT_PAUSE, _MAX_CONFLICT_PAUSE = 0.002, 0.5  # seconds


class _StoredNode(Struct, frozen=True, array_like=True, gc=False):
    type: int  # index in the list of types
    parents: tuple[int, ...] = ()  # as runs: first, length, first, length, ...
    on_parent_failure: str = ParentFailure.CANCEL.value
    bindings: tuple[tuple[tuple[str | int, ...], tuple[int, ...], bool], ...] = ()  # the parents as runs
    added_by: tuple[int, int] | None = None
    delay: float = 0.0
    run_at: float | None = None
    added_at: float | None = None


class _StoredGraph(Struct, frozen=True, kw_only=True):
    name: str
    created_at: Instant
    types: tuple[str, ...]
    nodes: tuple[_StoredNode, ...]
    key: str | None = None
    digest: str = ""
    submission: str = ""
    epoch: int = 0
    is_stored: bool = True
    resumed_at: Instant | None = None


_decoder = msgspec.msgpack.Decoder(_StoredGraph)
_POLICIES = {policy.value: policy for policy in ParentFailure}


def encode_graph(graph: WorkflowGraph) -> bytes:
    """Raises InvalidWorkflow if the graph has too many tasks or dependencies, or a task before its parent."""
    if len(graph.nodes) > MAX_WORKFLOW_TASKS:
        raise InvalidWorkflow(
            f"workflow {graph.name!r} has {len(graph.nodes):,} tasks, the limit is {MAX_WORKFLOW_TASKS:,}"
        )
    edges = sum(max(len(node.parents), _number_of_results(node)) for node in graph.nodes)
    if edges > MAX_WORKFLOW_EDGES:
        raise InvalidWorkflow(
            f"workflow {graph.name!r} has {edges:,} dependencies, the limit is {MAX_WORKFLOW_EDGES:,}; "
            "make tasks depend on one task that collects the others"
        )
    try:
        _check_order(graph.nodes)
    except ValueError as error:
        raise InvalidWorkflow(f"workflow {graph.name!r}: {error}") from error
    types = {type_: at for at, type_ in enumerate(dict.fromkeys(node.type for node in graph.nodes))}
    stored = _StoredGraph(
        name=graph.name,
        created_at=graph.created_at,
        types=tuple(types),
        nodes=tuple(_stored(node, types[node.type]) for node in graph.nodes),
        key=graph.key,
        digest=graph.digest,
        submission=graph.submission,
        epoch=graph.epoch,
        is_stored=graph.is_stored,
        resumed_at=graph.resumed_at,
    )
    data = _FORMAT + zlib.compress(msgspec.msgpack.encode(stored))
    if len(data) > _MAX_NOTE_SIZE:
        raise InvalidWorkflow(f"the graph of workflow {graph.name!r} takes {len(data):,} bytes: use fewer dependencies")
    return data


def _number_of_results(node: GraphNode) -> int:
    """How many results its arguments contain: the result of one parent may be in several places."""
    return sum(len(binding.parents) for binding in node.bindings)


def _stored(node: GraphNode, type_: int) -> _StoredNode:
    bindings = tuple((each.path, _to_runs(each.parents), each.is_list) for each in node.bindings)
    policy = node.on_parent_failure.value
    return _StoredNode(
        type_, _to_runs(node.parents), policy, bindings, node.added_by, node.delay, node.run_at, node.added_at
    )


def _to_runs(numbers: Iterable[int]) -> tuple[int, ...]:
    """Consecutive numbers as pairs of the first and their count: the parents of a callback are few pairs."""
    runs: list[int] = []
    for number in numbers:
        if runs and number == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += [number, 1]
    return tuple(runs)


def _from_runs(runs: tuple[int, ...]) -> tuple[int, ...]:
    if not runs:
        return ()
    if sum(runs[1::2]) > MAX_WORKFLOW_EDGES:
        raise ValueError("a task with too many parents")
    return tuple(number for at in range(0, len(runs), 2) for number in range(runs[at], runs[at] + runs[at + 1]))


def decode_graph(note: Note) -> WorkflowGraph:
    """Raises DamagedNote."""
    try:
        stored = _decoder.decode(_inflate(note.data))
        nodes = tuple(_node(each, stored.types) for each in stored.nodes)
        _check_order(nodes)
    except (*UNREADABLE, TypeError, ValueError, LookupError, zlib.error) as error:
        raise DamagedNote(*note, f"it is not the graph of a workflow: {error}") from error
    return WorkflowGraph(
        token=note.name.removeprefix(GRAPHS),
        name=stored.name,
        created_at=stored.created_at,
        nodes=nodes,
        key=stored.key,
        digest=stored.digest,
        submission=stored.submission,
        epoch=stored.epoch,
        is_stored=stored.is_stored,
        resumed_at=stored.resumed_at,
    )


def _inflate(data: bytes) -> bytes:
    if not data.startswith(_FORMAT):
        raise ValueError("it has another format")
    return zlib.decompressobj().decompress(data[len(_FORMAT) :], _MAX_DECODED_SIZE)


def _node(stored: _StoredNode, types: tuple[str, ...]) -> GraphNode:
    return GraphNode(
        type=types[stored.type],
        parents=_from_runs(stored.parents),
        on_parent_failure=_POLICIES[stored.on_parent_failure],
        bindings=tuple(Binding(path, _from_runs(runs), is_list) for path, runs, is_list in stored.bindings),
        added_by=stored.added_by,
        delay=stored.delay,
        run_at=stored.run_at,
        added_at=stored.added_at,
    )


def _check_order(nodes: tuple[GraphNode, ...]) -> None:
    """Raise ValueError unless every parent has a lower index than its children, which excludes cycles."""
    for index, node in enumerate(nodes):
        if not node.parents and not node.bindings:
            continue
        bound = (parent for binding in node.bindings for parent in binding.parents)
        if not all(0 <= parent < index for parent in (*node.parents, *bound)):
            raise ValueError(f"task {index} depends on a task that does not come before it")


async def read_graph(engine: Engine, token: str) -> WorkflowGraph | None:
    """Raises DamagedNote."""
    note = await engine.read_note(GRAPHS + token)
    return None if note is None else decode_graph(note)


async def extend_graph(
    engine: Engine,
    token: str,
    nodes: tuple[GraphNode, ...] = (),
    *,
    epoch: int = 0,
    submission: str | None = None,
    **fields: Any,
) -> WorkflowGraph:
    """Add nodes to a graph, increase its epoch, and set other fields.

    Raises InvalidWorkflow if the graph would be too large, does not exist, or is not that of `submission`.
    """
    deadline = boot_clock() + _CONFLICT_DEADLINE
    backoff = Backoff(_MIN_CONFLICT_PAUSE, _MAX_CONFLICT_PAUSE, jitter=(0.0, 1.0))
    while True:
        note = await engine.read_note(GRAPHS + token)
        if note is None:
            raise InvalidWorkflow(f"the graph of workflow {token} no longer exists")
        before = decode_graph(note)
        if submission not in {None, before.submission}:
            raise InvalidWorkflow(f"the workflow {token} was deleted and submitted again")
        after = msgspec.structs.replace(before, nodes=before.nodes + nodes, epoch=before.epoch + epoch, **fields)
        try:
            await engine.write_note(note.name, encode_graph(after), expected=note.version)
        except Conflict as error:
            if boot_clock() >= deadline:
                problem = f"the graph of workflow {token} is being changed by other processes; try again"
                raise StorageError(problem) from error
            await asyncio.sleep(backoff.next())
        else:
            return after
