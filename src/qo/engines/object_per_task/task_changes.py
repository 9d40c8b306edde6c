"""The one way a task changes: index first, state second, clean-up last.

So every task can be found at every moment, wherever the process that changes it dies; what is left over is harmless.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from qo.engines.object_per_task.keys import index_key, task_key
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.task_document import (
    DELETED,
    REMOVING,
    StoredDocument,
    as_tombstone,
    born,
    followed,
    grown,
)
from qo.engines.object_per_task.task_store import StoredTask
from qo.errors import Conflict, DamagedTask, StorageError
from qo.ids import luck
from qo.model import FINISHED, Added, NewTask, Status, Task, admit, created

_TRIES = 60
_PATIENT_TRIES = 12  # about a second: the submission that has named the next task under a key creates it in this time
_PAUSE = 0.2  # seconds, times chance: between tries on a task that others write all the time
_RESPITE = 600.0  # seconds after which a removal that did not happen is taken to have been given up

Moved = Callable[[Task | None, Task | None], None]


class ChangeResult(NamedTuple):
    changed: Task | None  # None: the rule refused
    seen: Task | None  # what it refused; None: there is no such task


class TaskChanges:
    def __init__(self, store: TasksLayout, moved: Moved) -> None:
        self._documents, self._index, self._lanes = store.documents, store.index, store.lanes
        self._clock, self._moved = store.clock, moved

    async def write(self, document: StoredDocument, over: StoredTask | None) -> None:
        """Index, state, clean-up. Conflict: the state was another; the index entry is stale_keys then."""
        before = over.task if over is not None and over.is_alive else None
        after = None if document.tombstone else document.task
        former = index_key(before) if before is not None else None
        needed = index_key(after) if after is not None else None
        if needed is not None and needed != former:
            await self._index.write(needed, self._lanes.content(document.task))
        await self._documents.write(document, over)
        if needed is not None:
            self._index.announce(needed)
        if former is not None and former != needed:
            self._index.remove(former)
        self._moved(before, after)

    async def add(self, new: NewTask, now: float, *, lead: float) -> Added:
        """The common case asks nothing first: if there is such a task the write is refused."""
        stale_keys: list[str] = []
        kept: StoredTask | None = None
        for attempt in range(_TRIES):
            may_take_over = attempt >= _PATIENT_TRIES
            added = await self._add_over(kept, new, now, stale_keys, lead=lead, may_take_over=may_take_over)
            if added is not None:
                return added
            await _pause(attempt)
            kept = await self._free_place(new.id, stale_keys)
        raise _too_busy(new.id)

    async def _add_over(
        self,
        kept: StoredTask | None,
        new: NewTask,
        now: float,
        stale_keys: list[str],
        *,
        lead: float,
        may_take_over: bool,
    ) -> Added | None:
        """None: look again, because what was read has changed."""
        if kept is not None and kept.document.successor and new.idempotency_key is not None:
            last = await self._free_place(kept.document.successor, stale_keys)
            if last is None or last.is_alive:
                added = await self._add_behind(kept, last, new, now, lead=lead, may_take_over=may_take_over)
                if added is not None:
                    self.clear(stale_keys, kept.task)
                return added
        if kept is None or not kept.is_alive:
            document = born(created(new, now, lead=lead))
            if kept is not None and new.idempotency_key is None:  # the key that others follow under is not this task's
                document = replace(document, successor=kept.document.successor)
            landed = await self._attempt(document, kept, stale_keys)
            return Added(new.id, new=True) if landed else None
        task = admit(kept.task, new, now)
        if task is not None and not await self._follow(kept, task.id):
            return None
        self.clear(stale_keys, kept.task)
        return Added(new.id, new=False)

    async def _add_behind(
        self, first: StoredTask, last: StoredTask | None, new: NewTask, now: float, *, lead: float, may_take_over: bool
    ) -> Added | None:
        """Add under a key whose first task others follow.

        If the last is not there, the submission that named it is about to create it, or never will: then a tombstone
        in its place stops it, and another id is named.
        """
        name = first.document.successor
        if last is None:
            named = created(replace(new, id=name), now, lead=lead)
            if name == new.next_id:
                return Added(name, new=True) if await self._attempt(born(named), None, []) else None
            if may_take_over:
                ended = replace(named, status=Status.CANCELLED, completed_at=now, payload=b"")
                await self._attempt(as_tombstone(born(ended), DELETED), None, [])
            return None
        task = admit(last.task, new, now)
        if task is not None and not await self._follow(first, task.id):
            return None
        return Added(name, new=False)

    async def _follow(self, first: StoredTask, successor: str) -> bool:
        """Name the next task under a key in the document of the first, before it is created. Of several, one wins.

        Answers whether such a task exists: then an earlier try of the same submission made it.
        """
        taken = await self._documents.read(successor)
        if taken is None:
            with suppress(Conflict):
                await self._documents.write(followed(first.document, successor), first)
        return taken is not None and taken.is_alive

    async def _free_place(self, task_id: str, stale_keys: list[str]) -> StoredTask | None:
        """What is there. A place that is being cleared away is not written before that is over."""
        for attempt in range(_TRIES):
            kept = await self._documents.read(task_id)
            if kept is None and not self._documents.is_readable(task_id):
                for key in stale_keys:  # or the task that never was would be counted
                    self._index.remove(key)
                raise DamagedTask(task_id, f"{task_key(task_id)} holds something that is not a task")
            if kept is None or kept.document.tombstone != REMOVING or kept.written_at < self._clock() - _RESPITE:
                return kept
            await _pause(attempt)
        raise _too_busy(task_id)

    async def change(self, task_id: str, rule: Callable[[Task], Task | None]) -> ChangeResult:
        """Write what the rule makes of the task. What this process wrote last is believed until a write fails."""
        stale_keys: list[str] = []
        held = self._documents.held(task_id)
        changed = rule(held.task) if held is not None else None
        if held and changed and await self._attempt(grown(held.document, changed), held, stale_keys):
            return ChangeResult(changed, None)
        for attempt in range(_TRIES):
            kept = await self._documents.read_living(task_id)
            changed = rule(kept.task) if kept is not None else None
            if kept is None or changed is None:
                self.clear(stale_keys, kept.task if kept else None)
                return ChangeResult(None, kept.task if kept else None)
            if await self._attempt(grown(kept.document, changed), kept, stale_keys):
                return ChangeResult(changed, None)
            await _pause(attempt)
        raise _too_busy(task_id)

    async def delete(self, task_id: str) -> bool:
        """Forget a finished task. A tombstone stays for a while, so that no late write can take the place."""
        for attempt in range(_TRIES):
            kept = await self._documents.read_living(task_id)
            if kept is None or kept.task.status not in FINISHED:
                return False
            if await self._attempt(as_tombstone(kept.document, DELETED), kept, []):
                return True
            await _pause(attempt)
        raise _too_busy(task_id)

    async def _attempt(self, document: StoredDocument, over: StoredTask | None, stale_keys: list[str]) -> bool:
        try:
            await self.write(document, over)
        except Conflict:
            stale_keys += filter(None, [index_key(document.task)])
            return False
        self.clear(stale_keys, document.task)
        return True

    def clear(self, stale_keys: list[str], task: Task | None) -> None:
        """Remove entries of writes that lost, unless the task as it is now needs just these."""
        for key in stale_keys:
            if task is not None and key != index_key(task):
                self._index.remove(key)


async def _pause(attempt: int) -> None:
    """The first try after a lost race is made at once."""
    await asyncio.sleep(_PAUSE * luck() if attempt else 0.0)


def _too_busy(task_id: str) -> StorageError:
    return StorageError(f"task {task_id} is written by others all the time; try again")
