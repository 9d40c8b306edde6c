"""The object's parts. Defaults are left out; a part that did not change is not encoded again.

{"format": 2, "version": 7, "writes": ["…"], "notes": [{…}], "tasks": [{"task": {…}, "events": [[…]]}, …]}
"""

import re
from collections.abc import Collection
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct, convert
from msgspec.structs import fields, replace

from qo.checksum import check_seal, sealed
from qo.damage import QUARANTINE
from qo.engines.unknown_fields import Shape, Unknown, put_back, unknown_fields
from qo.formats import Format, check_format, format_of
from qo.model import ID_PATTERN, UNREADABLE, Event, RetryPolicy, Status, Task, is_too_deep, with_kind

FORMAT = 2  # 1: before `followers`
ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and keep
_ID = re.compile(ID_PATTERN.encode())
_MOST_EVENTS = 64


class StoredEvent(Struct, frozen=True, array_like=True):
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
    events: tuple[StoredEvent, ...]


class StoredNote(Struct, frozen=True, kw_only=True):
    name: str
    data: bytes
    version: str


class ObjectHeader(Struct, frozen=True, kw_only=True):
    format: int
    since: int = 0  # with `format` and `qo`: see qo.formats
    qo: str = ""
    version: int  # grows with every write
    writes: tuple[str, ...]  # ids of the last writes, the newest last
    notes: tuple[StoredNote, ...] = ()
    followers: dict[str, str] = {}  # by a first task under an idempotency key, the last one under it
    tasks: tuple[msgspec.Raw, ...] = ()


class _StrictNote(StoredNote, frozen=True, kw_only=True, forbid_unknown_fields=True): ...


class _StrictHead(ObjectHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A head without anything from a newer qo."""

    notes: tuple[_StrictNote, ...] = ()


class _LooseHead(ObjectHeader, frozen=True, kw_only=True):
    """A head whose notes are looked at one by one."""

    notes: tuple[msgspec.Raw, ...] = ()  # type: ignore[assignment]


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
_heads = msgspec.json.Decoder(ObjectHeader)
_loose_heads = msgspec.json.Decoder(_LooseHead)
_notes = msgspec.json.Decoder(StoredNote)
_strict_heads = msgspec.json.Decoder(_StrictHead)
_RECORD = Shape(Record, task=Shape(Task, retry=Shape(RetryPolicy)), events=Shape(StoredEvent))
_NOTE, _HEAD = Shape(StoredNote), Shape(ObjectHeader)


def encode_record(record: Record, over: bytes | None = None) -> bytes:
    """`over`: the record it replaces. What a newer qo wrote there, and this one does not know, stays.

    With its checksum: see `encode_object`.
    """
    task = convert(record.task, _CompactTask, from_attributes=True)
    data = _encoder.encode({"task": task, "events": record.events})
    return sealed(data if over is None else put_back(data, unknown_fields(over, _RECORD), _RECORD))


def decode_record(data: bytes) -> Record:
    """Raises ValueError."""
    if is_too_deep(data):
        raise ValueError("it is nested too deeply")
    record = _records.decode(data)
    task = with_kind(record.task)
    return record if task is record.task else replace(record, task=task)


def id_in(data: bytes) -> str:
    """The id of a task that cannot be read, as far as it can be told."""
    found = _ID.search(data)
    return found[0].decode() if found else f"unknown-{crc32(data):08x}"


def decode_head(data: bytes) -> ObjectHeader:
    """Raises ValueError."""
    check_seal(data)
    try:
        try:
            return _strict_heads.decode(data)
        except msgspec.ValidationError:  # it has fields of a newer qo
            pass
        try:
            return _heads.decode(data)
        except msgspec.ValidationError:  # one of its notes is none, or it is damaged, which the next line says
            return _with_notes_set_aside(_loose_heads.decode(data))
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from error


def _with_notes_set_aside(head: _LooseHead) -> ObjectHeader:
    """What stands among the notes and is none is kept as a note under `quarantine/`."""
    notes = list[StoredNote]()
    for raw in head.notes:
        try:
            notes.append(_notes.decode(raw))
        except UNREADABLE:
            checksum = f"{crc32(raw):08x}"
            notes.append(StoredNote(name=f"{QUARANTINE}notes/{checksum}", data=bytes(raw), version=checksum))
    return ObjectHeader(
        **{field.name: getattr(head, field.name) for field in fields(ObjectHeader)} | {"notes": tuple(notes)}
    )


class UnknownParts(NamedTuple):
    """What a newer qo wrote beside the tasks, and this one does not know."""

    head: dict[str, bytes]
    notes: dict[str, Unknown]  # by the note's name


def unknown_parts(data: bytes, head: ObjectHeader) -> UnknownParts:
    """Few objects have any, so the whole is only looked through if it is not all known."""
    if isinstance(head, _StrictHead):
        return UnknownParts({}, {})
    parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    notes = msgspec.json.decode(parts.get("notes", b"[]"), type=list[msgspec.Raw])
    return UnknownParts(
        # Without line feeds: see `encode_object`.
        {name: msgspec.json.format(bytes(parts[name]), indent=-1) for name in parts.keys() - _HEAD.names},
        {
            note.name: unknown_fields(bytes(raw), _NOTE)
            for note, raw in zip(head.notes, notes, strict=True)
            if note.data != bytes(raw)  # not set aside
        },
    )


def check_head(place: str, head: ObjectHeader) -> Format:
    """The format to write: the object's own if that is newer. Raises Refused for one that shuts this build out."""
    found = Format(format=head.format, since=head.since, qo=head.qo)
    check_format(place, found, FORMAT)
    return found if head.format > FORMAT else format_of(FORMAT, additive=ADDITIVE)


def salvage(data: bytes) -> tuple[bytes, ObjectHeader, list[bytes]]:
    """What is intact of a damaged object: its head as text, and with those tasks; and the text of the other tasks.

    Raises ValueError if the head is not intact.
    """
    pieces = data.split(b"\n")
    first, *records = [b"\n".join(pair) for pair in zip(pieces[::2], pieces[1::2], strict=False)]
    if not check_seal(first):
        raise ValueError("what precedes its tasks has no checksum")
    if not any(record.startswith(b"]}\n") for record in records):
        raise ValueError("it ends early")
    text = pieces[0] + b"]}"
    head = decode_head(text)
    sound, damaged = list[msgspec.Raw](), list[bytes]()
    for record in records:
        if record.startswith(b"]}"):
            break
        try:
            is_sound = check_seal(record.removesuffix(b","))
        except ValueError:
            is_sound = False
        task = record.partition(b"\n")[0]
        if is_sound:
            sound.append(msgspec.Raw(task))
        else:
            damaged.append(task)
    return text, replace(head, tasks=tuple(sound)), damaged


def encode_object(head: ObjectHeader, records: Collection[bytes], unknown: UnknownParts) -> bytes:
    """The head, with the tasks' bytes put in as they are. Each part carries a checksum, and so does the whole.

    No part holds a line feed, so that those that are intact can be told even where the whole is damaged.
    """
    if unknown.notes:
        notes = [put_back(_encoder.encode(note), unknown.notes.get(note.name, {}), _NOTE) for note in head.notes]
        head = replace(head, notes=[msgspec.Raw(note) for note in notes])
    text = _encoder.encode(head)
    for name, value in unknown.head.items():
        text = b"{" + _encoder.encode(name) + b":" + value + b"," + text.removeprefix(b"{")
    first = sealed(text.removesuffix(b"]}"))
    return sealed(b"\n".join([first, b",\n".join(records), b"]}"]) if records else first + b"\n]}")


def grown(record: Record | None, task: Task, *, without_event: bool) -> Record:
    steps = record.events if record is not None else ()
    return Record(task=task, events=steps if without_event else (*steps, _step(task))[-_MOST_EVENTS:])


def _step(task: Task) -> StoredEvent:
    return StoredEvent(
        task.version,
        task.updated_at,
        task.status,
        task.attempt,
        task.failures,
        task.available_at,
        task.worker_id,
        task.error,
    )
