"""Advances workflows whose process died after it settled a task and before it unblocked the children."""

import logging
from contextlib import suppress

import msgspec

from qo import notes
from qo.client import Client
from qo.clock import Clock
from qo.errors import DamagedNote, InvalidWorkflow, StorageError
from qo.model import SUBMIT_DEADLINE, Note
from qo.workflows import (
    GRAPHS,
    OPEN_WORKFLOWS,
    OpenWorkflow,
    WorkflowTracker,
    extend_graph,
    mark_open,
    marked_revision,
    marked_token,
)

log = logging.getLogger("qo.monitor")
_MIN_INTERVAL = 30.0  # seconds between two reviews of a workflow
_DURATION_FACTOR = 50.0  # and at least this many times the duration of a review: requests of cloud stores cost money
_MAX_INTERVAL = 1800.0
_MAX_CHECK_DURATION = 10.0  # seconds, during which the monitor does nothing else; the rest waits for the next check


class WorkflowReviewer:
    """Any number may run: each change is guarded."""

    def __init__(self, client: Client, clock: Clock, elapsed: Clock) -> None:
        self._engine, self._clock, self._elapsed = client.engine, clock, elapsed
        self._tracker = WorkflowTracker(client.engine)
        self._due: dict[str, float] = {}  # by token: when its next review is due
        self.has_open = False  # whether a workflow was unfinished at the last check

    async def check(self) -> int:
        """Review the unfinished workflows; returns their number. Raises StorageError."""
        found = await self._engine.notes(OPEN_WORKFLOWS)
        self.has_open = bool(found)
        tokens = {note.name.removeprefix(OPEN_WORKFLOWS): note for note in found}
        self._due = {token: self._due.get(token) or self._first_due(note) for token, note in tokens.items()}
        until, failure = self._elapsed() + _MAX_CHECK_DURATION, None
        for token in sorted(tokens, key=self._due.__getitem__):
            began = self._elapsed()
            if began < self._due[token] or began >= until:
                break
            try:
                await self._review(tokens[token])
            except StorageError as error:  # others may be readable
                failure = failure or error
            pause = _DURATION_FACTOR * (self._elapsed() - began)
            self._due[token] = self._elapsed() + min(_MAX_INTERVAL, max(_MIN_INTERVAL, pause))
        if failure is not None:
            raise failure
        return len(found)

    def _first_due(self, note: Note) -> float:
        """A workflow is first reviewed 30 s after its submission, so that short workflows cost no review."""
        age = self._clock() - _began_at(note)
        return 0.0 if age >= _MIN_INTERVAL else self._elapsed() + min(_MIN_INTERVAL, _MIN_INTERVAL - age)

    async def _review(self, note: Note) -> None:
        token = marked_token(note.name)
        tracked = await self._tracker.cache.load(token)
        if tracked is None:
            await self._drop_if_abandoned(note)
            return
        has_ended = await self._tracker.review(token)
        revision = marked_revision(note.name)
        if revision is None:
            await self._end_abandoned_replay(note, has_ended=has_ended)
        elif revision.submission != tracked.graph.submission and self._is_abandoned(note):
            # Of an earlier workflow with the same key, whose tasks were deleted, or of a submission that came second.
            await self._engine.drop_note(note.name)

    async def _end_abandoned_replay(self, note: Note, *, has_ended: bool) -> None:
        """Complete a replay whose process has died."""
        if not self._is_abandoned(note):
            return
        if not has_ended:
            # Another process may have read the tasks before the replay, and may be removing the markers of that
            # revision.
            with suppress(InvalidWorkflow):
                graph = await extend_graph(self._engine, marked_token(note.name), epoch=1)
                await mark_open(self._engine, graph)
        await self._engine.drop_note(note.name)

    def _is_abandoned(self, note: Note) -> bool:
        return self._clock() >= _began_at(note) + SUBMIT_DEADLINE

    async def _drop_if_abandoned(self, note: Note) -> None:
        """Drop the marker of a submission that ended before its graph was written. A damaged graph keeps its marker."""
        if await self._engine.read_note(GRAPHS + marked_token(note.name)) is not None:
            return
        try:
            marker = msgspec.json.decode(note.data, type=OpenWorkflow)
        except msgspec.DecodeError as error:
            await notes.set_aside(self._engine, DamagedNote(*note, f"it is not the marker of a workflow: {error}"))
            await self._engine.drop_note(note.name)
            return
        if self._clock() >= marker.created_at + SUBMIT_DEADLINE:
            log.warning("a workflow was not submitted: its submission ended before its graph was stored")
            await self._engine.drop_note(note.name)


def _began_at(note: Note) -> float:
    """When the submission or the replay of a marker began; long ago if the marker is damaged."""
    try:
        return msgspec.json.decode(note.data, type=OpenWorkflow).created_at
    except msgspec.DecodeError:
        return 0.0
