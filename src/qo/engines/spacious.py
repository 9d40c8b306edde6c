"""What lies beside the tasks of any bucket layout: large payloads and results, and the notes of administrators.

Large values are blobs under data/ that tasks refer to.

A blob is written before a task refers to it and removed after the task is forgotten, so what is left over by a crash is
a blob nobody refers to. `repair` removes those, once they are too old to belong to a write under way.

Notes below admin/ and audit/ are objects of their own in every layout. In a layout of one object all roles write that
object, so what lies in it can neither grant rights nor prove what was done.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from qo.bucket import ANY, Bucket
from qo.clock import Clock
from qo.damage import DAMAGED_TASKS
from qo.engine import Engine, Repairable, Sharded, WriteBehind, default_retention
from qo.engines.note_objects import NoteObjects
from qo.engines.patience import patiently
from qo.engines.quarantine import Quarantine
from qo.engines.references import (
    DATA,
    MARK,
    Kind,
    data_key,
    follower_in,
    follower_name,
    is_id,
    is_intact,
    literal,
    own_key,
    reference,
    referred,
    task_id_in,
    value_of,
)
from qo.errors import Conflict, StorageError
from qo.ids import new_lease_id
from qo.model import (
    ADMIN_NOTES,
    AUDIT_NOTES,
    PAYLOAD_LIMIT,
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Task,
    check_distinct,
    fail,
    release,
)

log = logging.getLogger("qo.engines")
LARGEST = 16 * 1024 * 1024  # bytes, unless a URL says otherwise
YOUNGEST = 3600.0  # seconds: a younger blob may belong to a write under way
_MOST = 16  # transfers at once: they are large
_PAGE = 500
_APART = (ADMIN_NOTES, AUDIT_NOTES)

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class SpaciousEngine:
    """Takes what the engine below would keep inline, and keeps it aside if it is large."""

    def __init__(
        self,
        engine: Engine,
        bucket: Bucket,
        *,
        inline: int = PAYLOAD_LIMIT,
        payload_limit: int = LARGEST,
        patience: float = 0.0,
        clock: Clock,
    ) -> None:
        """A bucket that does not answer is asked again for at least `patience` seconds."""
        self.engine, self.payload_limit = engine, payload_limit
        self.default_retention = default_retention(engine)
        self._bucket, self._inline, self._clock, self._patience = bucket, inline, clock, patience
        self._admin_notes = NoteObjects(bucket, Quarantine())
        self._removals: dict[asyncio.Task[None], list[str]] = {}  # keys of deleted tasks that wait for a flush

    @property
    def shards(self) -> str:
        return self.engine.shards if isinstance(self.engine, Sharded) else ""

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        if not any(self._is_odd(task.payload) for task in tasks):
            return await self.engine.add(tasks)
        check_distinct(task.id for task in tasks)
        kept = await _together(self._keep_payload, tasks)
        aside = {task.id: key for task in kept if (key := own_key(task.payload, task.id, "payload"))}
        try:
            added = await self.engine.add(kept)
        except Conflict:  # nothing was written
            await _tidily(self._withdraw(aside))
            raise
        ids = [each.id for each in kept]
        if refused := {
            first: aside[first] for first, each in zip(ids, added, strict=True) if not each.new and first in aside
        }:
            await _tidily(self._withdraw(refused))
        return added

    def _is_odd(self, value: bytes | None) -> bool:
        return value is not None and (len(value) > self._inline or value.startswith(MARK))

    async def _keep_payload(self, task: NewTask) -> NewTask:
        """Under a name nobody else has: no two submissions share a blob, so removing one's own takes nobody else's."""
        name = new_lease_id()[:32]
        if task.next_id is not None:
            name = follower_name(task.next_id, name)
        return replace(task, payload=await self._keep(task.id, "payload", name, task.payload))

    async def _withdraw(self, refused: dict[str, str]) -> None:
        """Remove blobs of writes that were refused, unless the task refers to them: an earlier try may have landed."""
        there = await self.engine.get([*refused, *_followers(refused.values())])
        needed = {key for task in there if task is not None for key in _keys(task)}
        await self._remove([key for key in refused.values() if key not in needed])

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        if not any(self._is_odd(change.result) for change in changes):
            return await self.engine.apply(changes)
        check_distinct(change.id for change in changes)
        kept = await _together(self._keep_result, changes)
        aside = {change.id: key for change in kept if (key := own_key(change.result or b"", change.id, "result"))}
        try:
            answers = await self.engine.apply(kept)
        except Conflict:  # nothing was written
            await _tidily(self._withdraw(aside))
            raise
        landed = dict(zip((change.id for change in kept), answers, strict=True))
        if refused := {task_id: key for task_id, key in aside.items() if not landed[task_id]}:
            await _tidily(self._withdraw(refused))
        return answers

    async def _keep_result(self, change: Change) -> Change:
        """Under a name that follows from the lease and the value: a repeat writes the same blob."""
        if change.result is None:
            return change
        name = sha256(f"{change.lease_id} ".encode() + change.result).hexdigest()[:32]
        return replace(change, result=await self._keep(change.id, "result", name, change.result))

    async def _keep(self, task_id: str, kind: Kind, name: str, value: bytes) -> bytes:
        if len(value) <= self._inline or not is_id(task_id):
            return literal(value)
        key = data_key(task_id, kind, name)
        await self._patiently(lambda: self._bucket.put(key, value, expected=ANY))
        return reference(key, value)

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        tasks = await self.engine.get(ids)
        answers = await self.engine.delete(ids)
        gone = [task for task, deleted in zip(tasks, answers, strict=True) if task is not None and deleted]
        keys = [key for task in gone for key in _keys(task)]
        if keys and isinstance(self.engine, WriteBehind) and not self.engine.is_synced:
            removal = asyncio.create_task(self._remove_once_confirmed(self.engine, keys))
            self._removals[removal] = keys
            removal.add_done_callback(self._removals.pop)
        else:
            await _tidily(self._remove(keys))
        return answers

    async def _remove_once_confirmed(self, engine: WriteBehind, keys: list[str]) -> None:
        """A deletion that is lost brings its task back, which then needs its values."""
        if await engine.confirmed():
            await _tidily(self._remove(keys))

    async def _remove(self, keys: Sequence[str]) -> None:
        await _together(lambda key: self._patiently(lambda: self._bucket.delete(key)), keys)

    async def repair(self) -> int:
        """Remove blobs that no task refers to; and whatever the engine below repairs."""
        if isinstance(self.engine, WriteBehind):
            await self.engine.sync()  # a task that its copy does not show yet may refer to a blob
        repaired = await self.engine.repair() if isinstance(self.engine, Repairable) else 0
        found: defaultdict[str, list[str]] = defaultdict(list)
        for key in await self._patiently(self._all):
            if task_id := task_id_in(key):  # else it is somebody else's
                found[task_id].append(key)
        ids = sorted(found)
        for page in (ids[at : at + _PAGE] for at in range(0, len(ids), _PAGE)):
            tasks = await self.engine.get(page)
            needed = {key for task in tasks if task is not None for key in _keys(task)}
            needed.update(key for keys in self._removals.values() for key in keys)
            orphans = [key for task_id in page for key in found[task_id] if key not in needed]
            if followers := _followers(orphans):
                following = await self.engine.get(followers)
                needed.update(key for task in following if task is not None for key in _keys(task))
                tasks = [*tasks, *following]
            damaged = await self._damaged() if None in tasks else frozenset()
            orphans = [key for key in orphans if key not in needed and damaged.isdisjoint(_owners(key))]
            repaired += sum(await _together(self._remove_if_old, orphans))
        return repaired

    async def _damaged(self) -> frozenset[str]:
        """Tasks that cannot be read. Nobody knows which values they need, and they may be restored."""
        notes = await self.engine.notes(DAMAGED_TASKS)
        return frozenset(note.name.removeprefix(DAMAGED_TASKS) for note in notes)

    async def _all(self) -> list[str]:
        return [key async for key in self._bucket.keys(DATA)]

    async def _remove_if_old(self, key: str) -> int:
        blob = await self._patiently(lambda: self._bucket.get(key))
        if blob is None or blob.written_at > self._clock() - YOUNGEST:
            return 0
        await self._remove([key])
        return 1

    async def _patiently(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        return await patiently(request, patience=self._patience)

    # --- reading

    async def claim(self, want: ClaimRequest) -> list[Task]:
        claimed = await self.engine.claim(want)
        if not any(_is_marked(task) for task in claimed):
            return claimed
        try:
            filled = await _together(self._filled, claimed)
        except asyncio.CancelledError:  # its caller left; kept, the tasks would wait until their leases run out
            await asyncio.shield(self._hand_back(claimed))
            raise
        return [task for task in filled if task is not None]

    async def _hand_back(self, tasks: list[Task]) -> None:
        with suppress(StorageError):  # then their leases run out
            await self.engine.apply([release(task, None) for task in tasks])

    async def _filled(self, task: Task) -> Task | None:
        """None: it cannot run now, or never, and must not keep the others from it."""
        try:
            payload, result = await self._fetch(task, "payload"), await self._fetch(task, "result")
        except StorageError as error:
            log.warning("the payload of %s %s cannot be read: %s", task.type, task.id, error)
            await self.engine.apply([release(task)])
            return None
        if payload is not None:
            return replace(task, payload=payload, result=result)  # a replayed task has the result of its last life
        log.error("the payload of %s %s is gone or damaged", task.type, task.id, extra={"task_id": task.id})
        await self.engine.apply([fail(task, f"its payload is gone or damaged: {referred(task.payload)}")])
        return None

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return await _together(self._shown, await self.engine.get(ids))

    async def find(self, where: Filter, *, limit: int, after: str = "") -> list[Task]:
        return await self.with_values(await self.engine.find(where, limit=limit, after=after))

    async def find_without_values(self, where: Filter, *, limit: int, after: str = "") -> list[Task]:
        return await self.engine.find(where, limit=limit, after=after)

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        return await self.engine.get(ids)

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        return [task for task in await _together(self._shown, tasks) if task is not None]

    async def _shown(self, task: Task | None) -> Task | None:
        """As it was submitted. What is gone is named in its place: a listing must not fail for one task."""
        if task is None or not _is_marked(task):
            return task
        payload, result = await self._fetch(task, "payload"), await self._fetch(task, "result")
        return replace(
            task,
            payload=_missing(task.payload) if payload is None else payload,
            result=_missing(task.result) if result is None and task.result is not None else result,
        )

    async def _fetch(self, task: Task, kind: Kind) -> bytes | None:
        """None: there is nothing, or no longer, or it is damaged, or it is not the task's."""
        stored = task.payload if kind == "payload" else task.result
        if stored is None or referred(stored) is None:
            return None if stored is None else value_of(stored)
        key = own_key(stored, task.id, kind)
        if key is None:
            log.error("the %s of %s refers to %r, which is not its own", kind, task.id, referred(stored))
            return None
        blob = await self._patiently(lambda: self._bucket.get(key))
        if blob is not None and not is_intact(stored, blob.data):  # the answer may be damaged, and not what is stored
            blob = await self._patiently(lambda: self._bucket.get(key))
        if blob is not None and not is_intact(stored, blob.data):
            log.error("%s is damaged: its checksum is not that of its bytes", key)
            return None
        return None if blob is None else blob.data

    # --- what holds no values

    async def open(self) -> None:
        await self.engine.open()

    async def close(self) -> None:
        await self.engine.close()
        if self._removals:
            await asyncio.wait(self._removals)

    async def count(self) -> Counts:
        return await self.engine.count()

    async def history(self, task_id: str) -> list[Event]:
        return await self.engine.history(task_id)

    async def wait(self, want: ClaimRequest, timeout: float) -> None:
        await self.engine.wait(want, timeout)

    async def now(self) -> float:
        return self._clock()

    async def read_note(self, name: str) -> Note | None:
        if name.startswith(_APART):
            return await self._admin_notes.read(name)
        return await self.engine.read_note(name)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if name.startswith(_APART):
            return await self._admin_notes.write(name, data, expected)
        return await self.engine.write_note(name, data, expected=expected)

    async def notes(self, prefix: str) -> list[Note]:
        if prefix.startswith(_APART):
            return await self._admin_notes.find(prefix)
        folders = [folder for folder in _APART if folder.startswith(prefix)]
        found = await self.engine.notes(prefix)
        if not folders:
            return found
        # The engine below may show the same objects, or forged notes inside its one object.
        merged = [note for note in found if not note.name.startswith(_APART)]
        for folder in folders:
            merged += await self._admin_notes.find(folder)
        return sorted(merged)

    async def drop_note(self, name: str) -> None:
        if name.startswith(_APART):
            await self._admin_notes.drop(name)
        else:
            await self.engine.drop_note(name)


def _is_marked(task: Task) -> bool:
    return task.payload.startswith(MARK) or (task.result or b"").startswith(MARK)


def _missing(stored: bytes) -> bytes:
    return msgspec.json.encode({"$missing": referred(stored)})


def _keys(task: Task) -> list[str]:
    """Of the values of a task that lie aside. What it says of anything else is not believed: it may be forged."""
    keys = own_key(task.payload, task.id, "payload"), own_key(task.result or b"", task.id, "result")
    return [key for key in keys if key is not None]


async def _tidily(cleaning: Awaitable[None]) -> None:
    """The answer is known: what cannot be cleared away now is left to `repair`."""
    try:
        await cleaning
    except StorageError as error:
        log.warning("a blob nobody refers to stays until the next repair: %s", error)


async def _together(work: Callable[[Item], Awaitable[Answer]], items: Sequence[Item]) -> list[Answer]:
    slots = asyncio.Semaphore(_MOST)

    async def one(item: Item) -> Answer:
        async with slots:
            return await work(item)

    return await asyncio.gather(*(one(item) for item in items))


def _followers(keys: Iterable[str]) -> list[str]:
    """The tasks that may refer to these payloads because they follow another task under its idempotency key."""
    return sorted({task_id for key in keys if (task_id := follower_in(key)) is not None})


def _owners(key: str) -> set[str | None]:
    """The tasks that may refer to this value."""
    return {task_id_in(key), follower_in(key)}
