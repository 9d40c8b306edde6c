"""The markers of a workflow: notes that exist while some of its tasks are unfinished.

They let the monitor find the workflows that it must check, and keep retention from deleting their tasks.

A process that closes a workflow may have read the tasks before another process replays some of them or adds others,
and it may die at any time. So it must not remove a marker that the other process has written. Therefore the name of a
marker contains the revision of the graph, which a replay and an addition change, and a process removes only the
markers of the revision that it has read, and of earlier ones.

All tasks of a workflow may also be deleted, and the workflow submitted again under the same key, with the same token.
Therefore the markers of a workflow with a key also name its submission. A graph without a key has a marker without a
revision, until it is changed:

    workflows-open/<token>                                a workflow without a key
    workflows-open/<token>-<epoch>.<tasks>                after replays and additions
    workflows-open/<token>-<submission>.<epoch>.<tasks>   a workflow with a key
    workflows-open/<token>-<random>                       a replay whose consequences are not written yet
"""

import heapq
import re
from typing import NamedTuple

import msgspec
from msgspec import Struct

from qo.engine import Engine
from qo.model import ANY, Note, WorkflowGraph
from qo.notes import Instant

OPEN_WORKFLOWS = "workflows-open/"
_MARKED_REVISION = re.compile(r"-(?:([0-9a-f]+)\.)?([0-9]+)\.([0-9]+)$")


class MarkedRevision(NamedTuple):
    """The revision of a graph that a marker names."""

    submission: str
    epoch: int
    added: int

    def is_replaced_by(self, other: "MarkedRevision") -> bool:
        """Whether the other revision is this or a later one of the same workflow."""
        return self.submission == other.submission and self <= other


_UNCHANGED = MarkedRevision("", 0, 0)


class OpenWorkflow(Struct, frozen=True, kw_only=True):
    """The marker of an unfinished workflow."""

    created_at: Instant  # when the submission began, or the replay


async def mark_open(engine: Engine, graph: WorkflowGraph) -> None:
    """Write the marker of this revision of the graph, and remove those of earlier ones, which it replaces."""
    current = marker_name(graph)
    await _write(engine, current, graph.created_at)
    if _has_earlier_revisions(graph):
        for name in await _names(engine, graph):
            if name != current:
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
    names = await _names(engine, graph) if _has_earlier_revisions(graph) else [marker_name(graph)]
    for name in names:
        await engine.drop_note(name)


def _has_earlier_revisions(graph: WorkflowGraph) -> bool:
    return graph.revision > (0, 0)


async def _names(engine: Engine, graph: WorkflowGraph) -> list[str]:
    """The markers of this revision of the graph and of earlier ones."""
    current = _revision(graph)
    names = [note.name for note in await engine.notes(OPEN_WORKFLOWS + graph.token)]
    return [name for name in names if (marked := marked_revision(name)) is not None and marked.is_replaced_by(current)]


def _revision(graph: WorkflowGraph) -> MarkedRevision:
    return MarkedRevision(graph.submission, *graph.revision)


def marker_name(graph: WorkflowGraph) -> str:
    revision = _revision(graph)
    if revision == _UNCHANGED:
        return OPEN_WORKFLOWS + graph.token
    submission = f"{revision.submission}." if revision.submission else ""
    return f"{OPEN_WORKFLOWS}{graph.token}-{submission}{revision.epoch}.{revision.added}"


def replay_marker(token: str, replay: str) -> str:
    return f"{OPEN_WORKFLOWS}{token}-{replay}"


def marked_token(marker: str) -> str:
    """The workflow of a marker."""
    return marker.removeprefix(OPEN_WORKFLOWS).partition("-")[0]


def marked_revision(marker: str) -> MarkedRevision | None:
    """The revision of the graph in the name of a marker; None if it is the marker of a replay."""
    found = _MARKED_REVISION.search(marker)
    if found is None:
        return None if "-" in marker.removeprefix(OPEN_WORKFLOWS) else _UNCHANGED
    submission, epoch, added = found.groups(default="")
    return MarkedRevision(submission, int(epoch), int(added))


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
