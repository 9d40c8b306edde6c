"""Task objects: the task, the write ids that identify its writers, and its history, as one sealed JSON document.

A task is written only over the version that was read.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import SUPERSEDED, put_document
from qo.damage import Quarantine, check_seal, check_stored, sealed
from qo.engines.object_per_task.keys import task_key
from qo.engines.requests import retry
from qo.engines.unknown_fields import Shape, put_back, unknown_fields
from qo.ids import new_token
from qo.model import UNREADABLE, Event, RetryPolicy, Status, Task, event_of, is_id, with_kind

KEPT_WRITE_IDS = 8  # other processes may write up to this often before a lost response is resolved
_TOMBSTONE_WRITES = 2  # writes that do not increase the task's version
_MAX_CACHED_TASKS = 20_000
_MAX_EVENTS = 64
_MAX_EVENT_BYTES = 64 * 1024  # errors can be long


class StoredDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    task: Task
    nonce: str  # random id of the submission that created the document
    writes: tuple[str, ...]  # ids of the last writes; the last is this one's
    events: tuple[Event, ...]  # the last transitions; a store with versioning has all of them
    successor: str = ""  # of the first task under an idempotency key: the id of the last one
    tombstone: str = ""  # DELETED or REMOVING: the task is deleted, and its key is not free yet
    unknown: Any = None  # fields that a newer qo wrote, preserved; not a field of the document itself


DELETED = "deleted"
REMOVING = "removing"  # the object is about to be removed and must not be written

_decoder = msgspec.json.Decoder(StoredDocument)
_SHAPE = Shape(StoredDocument, but=("unknown",), task=Shape(Task, retry=Shape(RetryPolicy)), events=Shape(Event))


def encode(document: StoredDocument) -> bytes:
    if not document.unknown:
        return sealed(msgspec.json.encode(document))
    return sealed(put_back(msgspec.json.encode(replace(document, unknown=None)), document.unknown, _SHAPE))


def decode(data: bytes) -> StoredDocument:
    """Raises one of UNREADABLE."""
    check_seal(data)
    document = _decoder.decode(data)
    task = with_kind(document.task)
    if task is not document.task:
        document = replace(document, task=task)
    unknown = unknown_fields(data, _SHAPE)
    return replace(document, unknown=unknown) if unknown else document


def first_document(task: Task) -> StoredDocument:
    write = new_token()
    return StoredDocument(task=task, nonce=write, writes=(write,), events=(event_of(task),))


def next_document(document: StoredDocument, task: Task, log: str | None = None) -> StoredDocument:
    """The next version of the document. A lease renewal is not a transition and adds no event."""
    renewed = task.status is document.task.status is Status.RUNNING
    events = document.events if renewed else _bounded((*document.events, event_of(task, log)))
    return replace(document, task=task, writes=_with_write_id(document), events=events)


def with_successor(document: StoredDocument, successor: str) -> StoredDocument:
    return replace(document, writes=_with_write_id(document), successor=successor)


def as_tombstone(document: StoredDocument, tombstone: str) -> StoredDocument:
    return replace(document, writes=_with_write_id(document), tombstone=tombstone)


def is_ours(stored: StoredDocument, ours: StoredDocument) -> bool | None:
    """Whether the stored document includes our write. None if the write id may have been dropped."""
    if ours.writes[-1] in stored.writes or (len(ours.writes) == 1 and ours.nonce == stored.nonce):
        return True
    if len(ours.writes) == 1:  # a creation, and the stored document has another nonce
        return False
    passed = stored.task.version - ours.task.version
    return False if stored.nonce == ours.nonce and passed < KEPT_WRITE_IDS - _TOMBSTONE_WRITES else None


def _with_write_id(document: StoredDocument) -> tuple[str, ...]:
    return (*document.writes, new_token())[-KEPT_WRITE_IDS:]


def _bounded(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The last events. The logs of older events go first, then the events themselves."""
    size = sum(len(event.log or "") for event in events)
    if size > _MAX_EVENT_BYTES // 2:
        newest = max(event.version for event in events if event.log is not None)
        events = tuple(event if event.version == newest else replace(event, log=None) for event in events)
    size = 0
    for count, event in enumerate(reversed(events)):
        size += 200 + len(event.error or "") + len(event.log or "")
        if count == _MAX_EVENTS or (count and size > _MAX_EVENT_BYTES):
            return events[-count:]
    return events


class StoredTask(NamedTuple):
    document: StoredDocument
    version: str  # the bucket's version
    written_at: float

    @property
    def task(self) -> Task:
        return self.document.task

    @property
    def is_alive(self) -> bool:
        return not self.document.tombstone


class TaskStore:
    def __init__(self, bucket: Bucket, quarantine: Quarantine) -> None:
        self._bucket, self._quarantine = bucket, quarantine
        self._cached: OrderedDict[str, StoredTask] = OrderedDict()  # running tasks that this process wrote last

    async def read(self, task_id: str) -> StoredTask | None:
        """The stored object, or None if there is none or it cannot be read."""
        if not is_id(task_id):
            return None
        key = task_key(task_id)
        blob = await retry(lambda: self._bucket.get(key))
        if blob is None:
            self._quarantine.release_task(key, task_id)
            return None
        return self.decoded(task_id, blob)

    def decoded(self, task_id: str, blob: Blob) -> StoredTask | None:
        try:
            document = decode(blob.data)
            check_stored(document.task)
        except UNREADABLE as error:
            self._quarantine.put_task(task_key(task_id), task_id, error)
            return None
        if document.task.id != task_id:
            self._quarantine.put_task(
                task_key(task_id), task_id, f"its name says {task_id}, its content {document.task.id}"
            )
            return None
        self._quarantine.release_task(task_key(task_id), task_id)
        return StoredTask(document, blob.version, blob.written_at)

    async def read_live(self, task_id: str) -> StoredTask | None:
        stored = await self.read(task_id)
        return stored if stored is not None and stored.is_alive else None

    async def history(self, task_id: str) -> list[Event]:
        """The transitions, from the events in the current document or, if some were dropped, from all versions."""
        present = await self.read_live(task_id)
        if present is None:
            return []
        if present.document.events[0].version == 1:  # no event was dropped from the document
            return list(present.document.events)
        events: dict[int, Event] = {}
        for blob in await retry(lambda: self._bucket.versions(task_key(task_id))):
            stored = self.decoded(task_id, blob)
            # another nonce belongs to an earlier task with the same id
            if stored is not None and stored.document.nonce == present.document.nonce:
                events |= {event.version: event for event in stored.document.events}
        events |= {event.version: event for event in present.document.events}
        return [events[version] for version in sorted(events)]

    def cached(self, task_id: str) -> StoredTask | None:
        """The document that this process wrote last, so that settling needs no read. A write detects an old one."""
        return self._cached.get(task_id)

    async def write(self, document: StoredDocument, over: StoredTask | None) -> None:
        """Replace the document that was read, or create one. Raises Conflict if another process wrote first."""
        task = document.task
        self._cached.pop(task.id, None)
        version = await put_document(
            self._bucket,
            task_key(task.id),
            encode(document),
            expected=over.version if over else NEW,
            is_ours=lambda data: _is_ours(data, document),
        )
        if task.status is Status.RUNNING and version != SUPERSEDED:
            self._cached[task.id] = StoredTask(document, version, 0.0)
            if len(self._cached) > _MAX_CACHED_TASKS:
                self._cached.popitem(last=False)

    async def remove_unreadable(self, task_id: str) -> bool:
        """Remove an object if it still cannot be read. `repair` removes its index entries."""
        key = task_key(task_id)
        if await self.read(task_id) is not None or self.is_readable(task_id):
            return False
        await retry(lambda: self._bucket.delete(key))
        self._quarantine.release_task(key, task_id)
        return True

    async def is_occupied(self, task_id: str) -> bool:
        """Whether an object exists, readable or not."""
        return await retry(lambda: self._bucket.get(task_key(task_id))) is not None

    def is_readable(self, task_id: str) -> bool:
        return task_key(task_id) not in self._quarantine.keys


def _is_ours(data: bytes, document: StoredDocument) -> bool | None:
    try:
        return is_ours(decode(data), document)
    except UNREADABLE:
        return None
