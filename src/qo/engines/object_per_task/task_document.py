"""The document of a task: the task, the write ids that identify its writers, and its history."""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo.checksum import check_seal, sealed
from qo.engines.unknown_fields import Shape, put_back, unknown_fields
from qo.ids import new_token
from qo.model import Event, RetryPolicy, Status, Task, event_of

KEPT_WRITE_IDS = 8  # other processes may write up to this often before a lost response is resolved
_TOMBSTONE_WRITES = 2  # writes that do not increase the task's version
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
    unknown = unknown_fields(data, _SHAPE)
    return replace(document, unknown=unknown) if unknown else document


def first_document(task: Task) -> StoredDocument:
    write = new_token()
    return StoredDocument(task=task, nonce=write, writes=(write,), events=(event_of(task),))


def next_document(document: StoredDocument, task: Task) -> StoredDocument:
    """The next version of the document. A lease renewal is not a transition and adds no event."""
    renewed = task.status is document.task.status is Status.RUNNING
    events = document.events if renewed else _bounded((*document.events, event_of(task)))
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
    size = 0
    for count, event in enumerate(reversed(events)):
        size += 200 + len(event.error or "")
        if count == _MAX_EVENTS or (count and size > _MAX_EVENT_BYTES):
            return events[-count:]
    return events
