"""A task as an object holds it: with what it takes to recognise one's own write, and with its history."""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo.checksum import check_seal, sealed
from qo.engines.unknown_fields import Shape, put_back, unknown_fields
from qo.ids import new_token as new_write_id
from qo.model import Event, RetryPolicy, Status, Task, event_of

REMEMBERED = 8  # write ids kept: so many others may write before we read back
_BURIALS = 2  # writes that do not count in the task's own version
_MOST_EVENTS = 64
_MOST_BYTES = 64 * 1024  # of events: errors can be long


class StoredDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    task: Task
    nonce: str  # of the submission that began this life; others may write before it is read back
    writes: tuple[str, ...]  # ids of the last writes, this one's last
    events: tuple[Event, ...]  # the last transitions; a store that keeps versions has them all
    successor: str = ""  # of a first task under an idempotency key: the id of the last one under it
    tombstone: str = ""  # DELETED or REMOVING: forgotten, but its place is not free for a late write to take
    unknown: Any = None  # fields that a newer qo wrote, kept as they are; no field of the document itself


DELETED = "deleted"
REMOVING = "removing"  # the object is about to be removed, so nobody may write it

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


def born(task: Task) -> StoredDocument:
    write = new_write_id()
    return StoredDocument(task=task, nonce=write, writes=(write,), events=(event_of(task),))


def grown(document: StoredDocument, task: Task) -> StoredDocument:
    """The next version. Renewals are no transitions and leave no event."""
    renewed = task.status is document.task.status is Status.RUNNING
    events = document.events if renewed else _bounded((*document.events, event_of(task)))
    return replace(document, task=task, writes=_signed(document), events=events)


def followed(document: StoredDocument, successor: str) -> StoredDocument:
    return replace(document, writes=_signed(document), successor=successor)


def as_tombstone(document: StoredDocument, tombstone: str) -> StoredDocument:
    return replace(document, writes=_signed(document), tombstone=tombstone)


def is_ours(stored: StoredDocument, ours: StoredDocument) -> bool | None:
    """Whether our write is part of what is stored; None if it may have been and is forgotten."""
    if ours.writes[-1] in stored.writes or (len(ours.writes) == 1 and ours.nonce == stored.nonce):
        return True
    if len(ours.writes) == 1:  # a creation: what is there began with another
        return False
    passed = stored.task.version - ours.task.version
    return False if stored.nonce == ours.nonce and passed < REMEMBERED - _BURIALS else None


def _signed(document: StoredDocument) -> tuple[str, ...]:
    return (*document.writes, new_write_id())[-REMEMBERED:]


def _bounded(events: tuple[Event, ...]) -> tuple[Event, ...]:
    size = 0
    for kept, event in enumerate(reversed(events)):
        size += 200 + len(event.error or "")
        if kept == _MOST_EVENTS or (kept and size > _MOST_BYTES):
            return events[-kept:]
    return events
