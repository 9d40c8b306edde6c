"""The markers of a workflow: notes that exist while some of its tasks are unfinished.

They let the monitor find the workflows that it must check, and keep retention from deleting their tasks.

A process that closes a workflow may have read the tasks before another process replays some of them or adds others,
and it may die at any time. So it must not remove a marker that the other process has written. Therefore the name of a
marker contains the revision of the graph, which a replay and an addition change, and a process removes only the
markers of the revision that it has read, and of earlier ones. The submitted graph has a marker without a revision.
"""

import heapq

import msgspec
from msgspec import Struct

from qo.engine import Engine
from qo.model import ANY, Note, WorkflowGraph
from qo.notes import Instant

OPEN_WORKFLOWS = "workflows-open/"
_SUBMITTED = (0, 0)  # the revision of a graph as it was submitted


class OpenWorkflow(Struct, frozen=True, kw_only=True):
    """The marker of an unfinished workflow."""

    created_at: Instant  # when the submission began, or the replay


async def mark_open(engine: Engine, graph: WorkflowGraph) -> None:
    """Write the marker of this revision of the graph, and remove those of earlier ones, which it replaces."""
    await _write(engine, _name(graph), graph.created_at)
    if graph.revision != _SUBMITTED:
        for name, revision in await _revisions(engine, graph.token):
            if revision < graph.revision:
                await engine.drop_note(name)


async def mark_replay(engine: Engine, token: str, replay: str) -> None:
    """Write the marker of a replay, which stays until its consequences are written.

    Only the process that replays removes it, or the monitor if that process has died. `replay` names the process.
    """
    await _write(engine, replay_marker(token, replay), await engine.now())


async def _write(engine: Engine, name: str, created_at: float) -> None:
    await engine.write_note(name, msgspec.json.encode(OpenWorkflow(created_at=created_at)), expected=ANY)


async def drop_markers(engine: Engine, graph: WorkflowGraph) -> None:
    """Remove the markers of this revision of the graph and of earlier ones."""
    if graph.revision == _SUBMITTED:
        await engine.drop_note(_name(graph))
        return
    for name, revision in await _revisions(engine, graph.token):
        if revision <= graph.revision:
            await engine.drop_note(name)


async def _revisions(engine: Engine, token: str) -> list[tuple[str, tuple[int, int]]]:
    """The markers of the revisions of a workflow."""
    names = [note.name for note in await engine.notes(OPEN_WORKFLOWS + token)]
    return [(name, revision) for name in names if (revision := marked_revision(name)) is not None]


def _name(graph: WorkflowGraph) -> str:
    epoch, added = graph.revision
    return OPEN_WORKFLOWS + (graph.token if graph.revision == _SUBMITTED else f"{graph.token}-{epoch}.{added}")


def replay_marker(token: str, replay: str) -> str:
    return f"{OPEN_WORKFLOWS}{token}-{replay}"


def marked_token(marker: str) -> str:
    """The workflow of a marker."""
    return marker.removeprefix(OPEN_WORKFLOWS).partition("-")[0]


def marked_revision(marker: str) -> tuple[int, int] | None:
    """The revision of the graph in the name of a marker; None if it is the marker of a replay."""
    _, separator, text = marker.removeprefix(OPEN_WORKFLOWS).partition("-")
    if not separator:
        return _SUBMITTED
    epoch, dot, added = text.partition(".")
    return (int(epoch), int(added)) if dot and epoch.isdecimal() and added.isdecimal() else None


async def open_tokens(engine: Engine) -> frozenset[str]:
    """The unfinished workflows."""
    return frozenset(marked_token(note.name) for note in await engine.notes(OPEN_WORKFLOWS))


async def newest_open_tokens(engine: Engine, limit: int) -> list[str]:
    """The newest unfinished workflows."""
    found = await engine.notes(OPEN_WORKFLOWS)
    newest = heapq.nlargest(limit, found, key=_opened_at)
    return list(dict.fromkeys(marked_token(note.name) for note in newest))


def _opened_at(note: Note) -> float:
    try:
        return msgspec.json.decode(note.data, type=OpenWorkflow).created_at
    except msgspec.DecodeError:
        return 0.0  # the monitor sets it aside
