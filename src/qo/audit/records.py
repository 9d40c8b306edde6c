"""A record of one action, and the notes that hold records.

Each record is decoded separately, so that an unreadable one does not affect others. When a note is rewritten, the bytes
of every record stay the same, also of unreadable ones: a newer version of qo may have written them.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from qo import notes
from qo.ids import new_token
from qo.model import UNREADABLE, Note

log = logging.getLogger("qo.audit")

ActorKind = Literal["token", "cli", "page", "user", "anyone"]
ActionOutcome = Literal["done", "unknown"]

MAX_TASK_IDS: Final = 20  # ids named in one record; `number` is the number of tasks
MAX_RECORD_SIZE: Final = 16 * 1024  # bytes of a stored record; the fields of a record that qo writes stay far below it
_MAX_NAME = 128  # characters
_MAX_TARGET = 500  # characters

_Name = Annotated[str, Meta(max_length=_MAX_NAME)]


class AuditRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who did what, when and to what. Only actions that changed something, or may have, are recorded."""

    id: _Name
    at: notes.Instant
    actor: ActorKind
    who: _Name  # a token's name, user@host, an access key, a user of the identity provider
    action: _Name
    target: Annotated[str, Meta(max_length=_MAX_TARGET)] = ""
    task_ids: Annotated[tuple[_Name, ...], Meta(max_length=MAX_TASK_IDS)] = ()
    number: int | None = None  # tasks that were changed
    outcome: ActionOutcome = "done"  # unknown: the store failed, and may have accepted the write
    origin: _Name = ""  # the address a request came from
    verified: bool = True  # False: written with credentials that may only add records. Set by the reader, never stored


class AuditNote(Struct, frozen=True, kw_only=True):
    records: list[Raw]
    dropped: int = 0  # records of this day that were removed because there were too many


class StoredAction(NamedTuple):
    """A record and its stored bytes. The id of an unreadable record is the hash of its bytes."""

    id: str
    at: float
    actor: tuple[str, str]
    raw: Raw
    record: AuditRecord | None  # None: it cannot be read


def new_record(
    *,
    at: float,
    actor: ActorKind,
    who: str,
    action: str,
    target: str = "",
    task_ids: Sequence[str] = (),
    number: int | None = None,
    outcome: ActionOutcome = "done",
    origin: str = "",
) -> AuditRecord:
    """A record with a new id. Long texts are shortened."""
    return AuditRecord(
        id=new_token(),
        at=at,
        actor=actor,
        who=_shortened(who, _MAX_NAME),
        action=_shortened(action, _MAX_NAME),
        target=_shortened(target, _MAX_TARGET),
        task_ids=tuple(task_ids[:MAX_TASK_IDS]),
        number=number,
        outcome=outcome,
        origin=_shortened(origin, _MAX_NAME),
    )


def _shortened(text: str, length: int) -> str:
    text = text.encode("utf-8", "replace").decode()  # JSON has no lone surrogates
    return text if len(text) <= length else f"{text[: length - 1]}…"


def encode(records: Iterable[AuditRecord]) -> bytes:
    return msgspec.json.encode(AuditNote(records=[Raw(msgspec.json.encode(record)) for record in records]))


def decode(note: Note) -> AuditNote:
    """Decode a note of records. Raises DamagedNote."""
    return notes.decode(note, AuditNote)


def stored_actions(document: AuditNote, *, at: float) -> list[StoredAction]:
    """All records of a note. Unreadable ones are reported once, and count as done at `at`."""
    found = []
    for raw in document.records:
        try:
            record = msgspec.json.decode(raw, type=AuditRecord)
        except (*UNREADABLE, TypeError) as error:
            digest = sha256(raw).hexdigest()
            _report(digest, str(error))
            found.append(StoredAction(digest, at, ("", "unreadable"), raw, None))
        else:
            found.append(StoredAction(record.id, record.at, (record.actor, record.who), raw, record))
    return found


def unreadable_note(note: Note, *, at: float) -> StoredAction:
    """A note that cannot be read, as one unreadable record that holds its bytes."""
    raw = Raw(msgspec.json.encode({"unreadable": note.data}))
    return StoredAction(sha256(raw).hexdigest(), at, ("", "unreadable"), raw, None)


def shortened(action: StoredAction) -> StoredAction:
    """The action, or a shortened record that is marked as such if its bytes exceed `MAX_RECORD_SIZE`."""
    size = len(memoryview(action.raw))
    if size <= MAX_RECORD_SIZE:
        return action
    if action.record is None:
        record = AuditRecord(
            id=action.id,
            at=action.at,
            actor="anyone",
            who="unknown",
            action="audit.too_large",
            target=f"an unreadable record of {size:,} bytes was not kept",
        )
    else:
        target = f"(shortened from {size:,} bytes) {action.record.target}"
        record = replace(action.record, target=_shortened(target, _MAX_TARGET))
    return action._replace(raw=Raw(msgspec.json.encode(record)), record=record)


@lru_cache(1024)
def _report(digest: str, problem: str) -> None:
    log.error(
        "a record of the audit trail (SHA-256 %s) cannot be read and is kept as it is; a newer qo may be able to: %s",
        digest,
        problem,
    )
