"""The object's format. Fields with default values are omitted.

{"format": 2, "version": 7, "writes": ["…"], "notes": [{…}], "tasks": [{"task": {…}, "events": [[…]]}, …]}
"""

import re
from collections.abc import Collection
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct, convert
from msgspec.structs import fields, replace

from qo.damage import QUARANTINE, check_seal, sealed
from qo.engines.unknown_fields import Shape, Unknown, put_back, unknown_fields
from qo.formats import Format, check_format, format_of
from qo.model import ID_PATTERN, UNREADABLE, Event, RetryPolicy, Status, Task, is_too_deep, with_kind

FORMAT = 2  # 1: before `followers`
ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and preserve
_ID = re.compile(ID_PATTERN.encode())
_MAX_EVENTS = 64


class StoredEvent(Struct, frozen=True, array_like=True):
    """An event as an array without field names, because a task has several."""

    version: int
    at: float
    status: Status
    attempt: int
    failures: int
    available_at: float
    worker_id: str | None
    error: str | None
    log: str | None = None

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
    since: int = 0  # with `format` and `qo`: see `qo.formats`
    qo: str = ""
    version: int  # increases with every write
    writes: tuple[str, ...]  # ids of the last writes, the newest last
    notes: tuple[StoredNote, ...] = ()
    followers: dict[str, str] = {}  # the last task under an idempotency key, by the id of the first one
    tasks: tuple[msgspec.Raw, ...] = ()


class _StrictNote(StoredNote, frozen=True, kw_only=True, forbid_unknown_fields=True): ...


class _StrictHead(ObjectHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A head without fields of a newer qo."""

    notes: tuple[_StrictNote, ...] = ()


class _LooseHead(ObjectHeader, frozen=True, kw_only=True):
    """A head whose notes are decoded one by one."""

    notes: tuple[msgspec.Raw, ...] = ()  # type: ignore[assignment]


def _compact(kind: type[Struct]) -> type[Struct]:
    """A class with the same fields for encoding, under the same names in JSON, which omits default values."""
    described: list[Any] = [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in fields(kind)
    ]
    names = {field.name: field.encode_name for field in fields(kind)}
    return msgspec.defstruct(f"Compact{kind.__name__}", described, kw_only=True, omit_defaults=True, rename=names)


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
    """The record with its checksum (see `encode_object`).

    `over` is the record that it replaces; fields that a newer qo wrote there are preserved.
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
    """The id of a damaged task, or a substitute if it contains none."""
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
        except msgspec.ValidationError:  # a note is damaged; if anything else is, the next line raises
            return _with_notes_set_aside(_loose_heads.decode(data))
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from error


def _with_notes_set_aside(head: _LooseHead) -> ObjectHeader:
    """Damaged notes become notes under `quarantine/`."""
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
    """Fields outside the tasks that a newer qo wrote."""

    head: dict[str, bytes]
    notes: dict[str, Unknown]  # by the note's name


def unknown_parts(data: bytes, head: ObjectHeader) -> UnknownParts:
    """Few objects have any: a head that decodes strictly has none."""
    if isinstance(head, _StrictHead):
        return UnknownParts({}, {})
    parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    notes = msgspec.json.decode(parts.get("notes", b"[]"), type=list[msgspec.Raw])
    return UnknownParts(
        # without line feeds: see `encode_object`
        {name: msgspec.json.format(bytes(parts[name]), indent=-1) for name in parts.keys() - _HEAD.names},
        {
            note.name: unknown_fields(bytes(raw), _NOTE)
            for note, raw in zip(head.notes, notes, strict=True)
            if note.data != bytes(raw)  # the note was not set aside
        },
    )


def check_head(place: str, head: ObjectHeader) -> Format:
    """The format to write: the object's own if that is newer. Raises Refused if a newer qo excludes this build."""
    found = Format(format=head.format, since=head.since, qo=head.qo)
    check_format(place, found, FORMAT)
    return found if head.format > FORMAT else format_of(FORMAT, additive=ADDITIVE)


def salvage(data: bytes) -> tuple[bytes, ObjectHeader, list[bytes]]:
    """Recover what is intact in a damaged object.

    Returns the text of its head, the head with the intact tasks, and the texts of the damaged tasks. Raises ValueError
    if the head is not intact.
    """
    pieces = data.split(b"\n")
    first, *records = [b"\n".join(pair) for pair in zip(pieces[::2], pieces[1::2], strict=False)]
    if not check_seal(first):
        raise ValueError("the part before its tasks has no checksum")
    if not any(record.startswith(b"]}\n") for record in records):
        raise ValueError("it is truncated")
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
    """The object: the head, and the encoded records as they are. Each part has a checksum, and so has the whole.

    No part contains a line feed, so that intact parts of a damaged object can be recognised.
    """
    if unknown.notes:
        notes = [put_back(_encoder.encode(note), unknown.notes.get(note.name, {}), _NOTE) for note in head.notes]
        head = replace(head, notes=[msgspec.Raw(note) for note in notes])
    text = _encoder.encode(head)
    for name, value in unknown.head.items():
        text = b"{" + _encoder.encode(name) + b":" + value + b"," + text.removeprefix(b"{")
    first = sealed(text.removesuffix(b"]}"))
    return sealed(b"\n".join([first, b",\n".join(records), b"]}"]) if records else first + b"\n]}")


def grown(record: Record | None, task: Task, *, without_event: bool, log: str | None = None) -> Record:
    """The next version of the record. Only the newest log is kept, because every write writes the whole object."""
    events = record.events if record is not None else ()
    if without_event:
        return Record(task=task, events=events)
    if log is not None:
        events = tuple(event if event.log is None else replace(event, log=None) for event in events)
    return Record(task=task, events=(*events, _stored_event(task, log))[-_MAX_EVENTS:])


def _stored_event(task: Task, log: str | None) -> StoredEvent:
    return StoredEvent(
        task.version,
        task.updated_at,
        task.status,
        task.attempt,
        task.failures,
        task.available_at,
        task.worker_id,
        task.error,
        log,
    )
