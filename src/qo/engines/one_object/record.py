"""The object's parts. Defaults are left out; a part that did not change is not encoded again.

{"format": 1, "version": 7, "writes": ["…"], "notes": [{…}], "tasks": [{"task": {…}, "events": [[…]]}, …]}
"""

import re
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct, convert
from msgspec.structs import fields

from qo.model import Event, Status, Task

FORMAT = 1
_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOST_EVENTS = 64


class Step(Struct, frozen=True, array_like=True):
    """An event without the names of its fields: there are several to a task."""

    version: int
    at: float
    status: Status
    attempt: int
    failures: int
    available_at: float
    worker_id: str | None
    error: str | None

    def event(self) -> Event:
        return convert(self, Event, from_attributes=True)


class Record(Struct, frozen=True, kw_only=True):
    """A task and its last transitions."""

    task: Task
    events: tuple[Step, ...]


class StoredNote(Struct, frozen=True, kw_only=True):
    name: str
    data: bytes
    version: str


class Head(Struct, frozen=True, kw_only=True):
    format: int
    version: int  # grows with every write
    writes: tuple[str, ...]  # ids of the last writes, the newest last
    notes: tuple[StoredNote, ...] = ()
    tasks: tuple[msgspec.Raw, ...] = ()


def _compact(kind: type[Struct]) -> type[Struct]:
    """The same fields, but those at their defaults are not written. Reading needs no such twin."""
    described: list[Any] = [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in fields(kind)
    ]
    return msgspec.defstruct(f"Compact{kind.__name__}", described, kw_only=True, omit_defaults=True)


_CompactTask = _compact(Task)
_encoder = msgspec.json.Encoder()
_records = msgspec.json.Decoder(Record)
_heads = msgspec.json.Decoder(Head)


def encode_record(record: Record) -> bytes:
    task = convert(record.task, _CompactTask, from_attributes=True)
    return _encoder.encode({"task": task, "events": record.events})


def decode_record(data: bytes) -> Record:
    return _records.decode(data)


def id_in(data: bytes) -> str:
    """The id of a task that cannot be read, as far as it can be told."""
    found = _ID.search(data)
    return found[0].decode() if found else f"unknown-{crc32(data):08x}"


def decode_head(data: bytes) -> Head:
    return _heads.decode(data)


def encode_object(head: Head, records: list[bytes]) -> bytes:
    """The head, with the tasks' bytes put in as they are. Megabytes are copied once."""
    text = _encoder.encode(head)
    if not records:
        return text
    records[0] = text.removesuffix(b"]}") + records[0]
    records[-1] += b"]}"
    return b",".join(records)


def grown(record: Record | None, task: Task, *, quietly: bool) -> Record:
    steps = record.events if record is not None else ()
    return Record(task=task, events=steps if quietly else (*steps, _step(task))[-_MOST_EVENTS:])


def _step(task: Task) -> Step:
    return Step(
        task.version,
        task.updated_at,
        task.status,
        task.attempt,
        task.failures,
        task.available_at,
        task.worker_id,
        task.error,
    )
