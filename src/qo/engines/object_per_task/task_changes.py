"""Changes of tasks, in a fixed order: index entry first, then the task, then the clean-up.

So every task can be found at every moment, even if the process that changes it dies. Leftover entries are harmless.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from qo.engines.object_per_task.keys import index_key, task_key
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.task_store import (
    DELETED,
    REMOVING,
    StoredDocument,
    StoredTask,
    as_tombstone,
    first_document,
    next_document,
    with_successor,
)
from qo.errors import Conflict, DamagedTask, StorageError
from qo.ids import random_fraction
from qo.model import FINISHED, Added, NewTask, Status, Task, admit, created

_MAX_ATTEMPTS = 60
_SUCCESSOR_ATTEMPTS = 12  # about a second, in which the submission that named a successor creates it
_MAX_DELAY = 0.2  # between attempts on a task that other processes keep writing
_REMOVAL_TIMEOUT = 600.0  # after which a removal that did not happen is considered abandoned

OnMove = Callable[[Task | None, Task | None], None]


class ChangeResult(NamedTuple):
    changed: Task | None  # None: the rule refused
    seen: Task | None  # the task that the rule refused; None: there is no such task


class TaskChanges:
    def __init__(self, store: TasksLayout, on_move: OnMove) -> None:
        self._documents, self._index, self._lanes = store.documents, store.index, store.lanes
        self._clock, self._on_move = store.clock, on_move

    async def write(self, document: StoredDocument, over: StoredTask | None) -> None:
        """Write index entry and task, then clean up. If the task has changed, the entry is stale: raises Conflict."""
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
        self._on_move(before, after)

    async def add(self, new: NewTask, now: float, *, lead: float) -> Added:
        """Add a task. The common case reads nothing first: if the task exists, the store refuses the write."""
        stale_keys: list[str] = []
        stored: StoredTask | None = None
        for attempt in range(_MAX_ATTEMPTS):
            may_take_over = attempt >= _SUCCESSOR_ATTEMPTS
            added = await self._add_over(stored, new, now, stale_keys, lead=lead, may_take_over=may_take_over)
            if added is not None:
                return added
            await _pause(attempt)
            stored = await self._read_settled(new.id, stale_keys)
        raise _too_busy(new.id)

    async def _add_over(
        self,
        stored: StoredTask | None,
        new: NewTask,
        now: float,
        stale_keys: list[str],
        *,
        lead: float,
        may_take_over: bool,
    ) -> Added | None:
        """One attempt to add. None: the stored document has changed; read it again."""
        if stored is not None and stored.document.successor and new.idempotency_key is not None:
            last = await self._read_settled(stored.document.successor, stale_keys)
            if last is None or last.is_alive:
                added = await self._add_successor(stored, last, new, now, lead=lead, may_take_over=may_take_over)
                if added is not None:
                    self.clear(stale_keys, stored.task)
                return added
        if stored is None or not stored.is_alive:
            document = first_document(created(new, now, lead=lead))
            if stored is not None and new.idempotency_key is None:  # the key of the successors is not this task's
                document = replace(document, successor=stored.document.successor)
            is_written = await self._attempt(document, stored, stale_keys)
            return Added(new.id, new=True) if is_written else None
        task = admit(stored.task, new, now)
        if task is not None and not await self._name_successor(stored, task.id):
            return None
        self.clear(stale_keys, stored.task)
        return Added(new.id, new=False)

    async def _add_successor(
        self, first: StoredTask, last: StoredTask | None, new: NewTask, now: float, *, lead: float, may_take_over: bool
    ) -> Added | None:
        """Add under an idempotency key whose first task has successors.

        If the last successor does not exist, the submission that named it is about to create it, or was interrupted.
        After a while a tombstone is written in its place, which stops that submission, and another id is named.
        """
        name = first.document.successor
        if last is None:
            named = created(replace(new, id=name), now, lead=lead)
            if name == new.next_id:
                return Added(name, new=True) if await self._attempt(first_document(named), None, []) else None
            if may_take_over:
                ended = replace(named, status=Status.CANCELLED, completed_at=now, payload=b"")
                await self._attempt(as_tombstone(first_document(ended), DELETED), None, [])
            return None
        task = admit(last.task, new, now)
        if task is not None and not await self._name_successor(first, task.id):
            return None
        return Added(name, new=False)

    async def _name_successor(self, first: StoredTask, successor: str) -> bool:
        """Name the next task under a key in the first task's document, before it is created. One writer wins.

        Returns whether the named task exists: an earlier attempt of the same submission created it.
        """
        taken = await self._documents.read(successor)
        if taken is None:
            with suppress(Conflict):
                await self._documents.write(with_successor(first.document, successor), first)
        return taken is not None and taken.is_alive

    async def _read_settled(self, task_id: str, stale_keys: list[str]) -> StoredTask | None:
        """The stored document. Waits while it is being removed."""
        for attempt in range(_MAX_ATTEMPTS):
            stored = await self._documents.read(task_id)
            if stored is None and not self._documents.is_readable(task_id):
                for key in stale_keys:  # otherwise a task that does not exist would be counted
                    self._index.remove(key)
                raise DamagedTask(task_id, f"{task_key(task_id)} does not hold a task")
            if (
                stored is None
                or stored.document.tombstone != REMOVING
                or stored.written_at < self._clock() - _REMOVAL_TIMEOUT
            ):
                return stored
            await _pause(attempt)
        raise _too_busy(task_id)

    async def change(self, task_id: str, rule: Callable[[Task], Task | None], log: str | None = None) -> ChangeResult:
        """Write the task that the rule returns. The cached document is used until a write of it fails."""
        stale_keys: list[str] = []
        cached = self._documents.cached(task_id)
        changed = rule(cached.task) if cached is not None else None
        if cached and changed:
            document = next_document(cached.document, changed, log)
            if await self._attempt(document, cached, stale_keys):
                return ChangeResult(changed, None)
        for attempt in range(_MAX_ATTEMPTS):
            stored = await self._documents.read_live(task_id)
            changed = rule(stored.task) if stored is not None else None
            if stored is None or changed is None:
                self.clear(stale_keys, stored.task if stored else None)
                return ChangeResult(None, stored.task if stored else None)
            if await self._attempt(next_document(stored.document, changed, log), stored, stale_keys):
                return ChangeResult(changed, None)
            await _pause(attempt)
        raise _too_busy(task_id)

    async def delete(self, task_id: str) -> bool:
        """Delete a finished task. A tombstone stays for a while, so that a delayed write cannot recreate it."""
        for attempt in range(_MAX_ATTEMPTS):
            stored = await self._documents.read_live(task_id)
            if stored is None or stored.task.status not in FINISHED:
                return False
            if await self._attempt(as_tombstone(stored.document, DELETED), stored, []):
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
        """Remove the entries of failed writes, unless the task in its current state needs them."""
        for key in stale_keys:
            if task is not None and key != index_key(task):
                self._index.remove(key)


async def _pause(attempt: int) -> None:
    """The first retry after a conflict follows immediately."""
    await asyncio.sleep(_MAX_DELAY * random_fraction() if attempt else 0.0)


def _too_busy(task_id: str) -> StorageError:
    return StorageError(f"other processes keep writing task {task_id}; try again")
