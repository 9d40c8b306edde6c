"""The one way a task changes: index first, state second, clean-up last.

So every task can be found at every moment, wherever the process that changes it dies; what is left over is harmless.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from qo.engines.per_task.document import DELETED, REMOVING, Document, born, buried, grown
from qo.engines.per_task.documents import Kept
from qo.engines.per_task.keys import index_key, task_key
from qo.engines.per_task.store import Store
from qo.errors import Conflict, DamagedTask, StorageError
from qo.ids import luck
from qo.model import FINISHED, NewTask, Task, admit

_TRIES = 60
_PAUSE = 0.2  # seconds, times chance: between tries on a task that others write all the time
_RESPITE = 600.0  # seconds after which a removal that did not happen is taken to have been given up

Moved = Callable[[Task | None, Task | None], None]


class Outcome(NamedTuple):
    changed: Task | None  # None: the rule refused
    seen: Task | None  # what it refused; None: there is no such task


class Transitions:
    def __init__(self, store: Store, moved: Moved) -> None:
        self._documents, self._index, self._lanes = store.documents, store.index, store.lanes
        self._clock, self._moved = store.clock, moved

    async def write(self, document: Document, over: Kept | None) -> None:
        """Index, state, clean-up. Conflict: the state was another; the index entry is litter then."""
        before = over.task if over is not None and over.is_alive else None
        after = None if document.grave else document.task
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

    async def add(self, new: NewTask, now: float) -> bool:
        """Whether the task is new. The common case asks nothing first: if there is such a task the write is refused.

        Raises DamagedTask if something else is in its place.
        """
        litter: list[str] = []
        kept: Kept | None = None
        for attempt in range(_TRIES):
            task = admit(kept.task if kept is not None and kept.is_alive else None, new, now)
            if task is None:
                self.clear(litter, kept.task if kept else None)
                return False
            if await self._attempt(_following(kept, task), kept, litter):
                return True
            await _pause(attempt)
            kept = await self._free_place(new.id, litter)
        raise _too_busy(new.id)

    async def _free_place(self, task_id: str, litter: list[str]) -> Kept | None:
        """What is there. A place that is being cleared away is not written before that is over."""
        for attempt in range(_TRIES):
            kept = await self._documents.read(task_id)
            if kept is None and not self._documents.is_readable(task_id):
                for key in litter:  # or the task that never was would be counted
                    self._index.remove(key)
                raise DamagedTask(task_id, f"{task_key(task_id)} holds something that is not a task")
            if kept is None or kept.document.grave != REMOVING or kept.written_at < self._clock() - _RESPITE:
                return kept
            await _pause(attempt)
        raise _too_busy(task_id)

    async def change(self, task_id: str, rule: Callable[[Task], Task | None]) -> Outcome:
        """Write what the rule makes of the task. What this process wrote last is believed until a write fails."""
        litter: list[str] = []
        held = self._documents.held(task_id)
        changed = rule(held.task) if held is not None else None
        if held and changed and await self._attempt(grown(held.document, changed), held, litter):
            return Outcome(changed, None)
        for attempt in range(_TRIES):
            kept = await self._documents.read_living(task_id)
            changed = rule(kept.task) if kept is not None else None
            if kept is None or changed is None:
                self.clear(litter, kept.task if kept else None)
                return Outcome(None, kept.task if kept else None)
            if await self._attempt(grown(kept.document, changed), kept, litter):
                return Outcome(changed, None)
            await _pause(attempt)
        raise _too_busy(task_id)

    async def delete(self, task_id: str) -> bool:
        """Forget a finished task. A grave stays for a while, so that no late write can take the place."""
        for attempt in range(_TRIES):
            kept = await self._documents.read_living(task_id)
            if kept is None or kept.task.status not in FINISHED:
                return False
            if await self._attempt(buried(kept.document, DELETED), kept, []):
                return True
            await _pause(attempt)
        raise _too_busy(task_id)

    async def _attempt(self, document: Document, over: Kept | None, litter: list[str]) -> bool:
        try:
            await self.write(document, over)
        except Conflict:
            litter += filter(None, [index_key(document.task)])
            return False
        self.clear(litter, document.task)
        return True

    def clear(self, litter: list[str], task: Task | None) -> None:
        """Remove entries of writes that lost, unless the task as it is now needs just these."""
        for key in litter:
            if task is not None and key != index_key(task):
                self._index.remove(key)


def _following(kept: Kept | None, task: Task) -> Document:
    return grown(kept.document, task) if kept is not None and kept.is_alive else born(task)


async def _pause(attempt: int) -> None:
    """The first try after a lost race is made at once."""
    await asyncio.sleep(_PAUSE * luck() if attempt else 0.0)


def _too_busy(task_id: str) -> StorageError:
    return StorageError(f"task {task_id} is written by others all the time; try again")
