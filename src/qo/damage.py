"""Damage of stored tasks: checksums that detect it, and the notes that record it.

An engine that finds a damaged task omits it from the result, removes it from its indexes so that no claim finds it
again, and keeps its bytes. The note `quarantine/tasks/<id>` reports it to every other process.

A JSON document in a bucket is followed by its CRC-32 as white space: a line feed, then 32 characters, a space for 0 and
a tab for 1. JSON parsers ignore it, and a writer that does not know the checksum drops it, so it is never out of date.
A document without a checksum is accepted unchecked. CRC-32 detects every burst error of up to 32 bits, costs about 1 ms
per megabyte, and browsers can compute it (`dashboard/sources/checksum.js`). It does not protect against forgery.
"""

import logging
from collections.abc import Mapping
from zlib import crc32

import msgspec
from msgspec import Struct

from qo.errors import DamagedTask, StorageError
from qo.model import UNREADABLE, Task

log = logging.getLogger("qo.damage")
QUARANTINE = "quarantine/"
DAMAGED_TASKS = "quarantine/tasks/"
_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_799.0  # the range of ISO 8601: years 1 to 9999
_MAX_REPORTED_TASKS = 10_000
Damage = Mapping[str, str]  # from the id of an unreadable task to the reason
_CRC_BITS = 32
_SEAL_LENGTH = _CRC_BITS + 1  # the line feed
_TO_SPACE = bytes.maketrans(b"01", b" \t")
_FROM_SPACE = bytes.maketrans(b" \t", b"01")
_engine_log = logging.getLogger("qo.engines")
_MAX_QUARANTINED_KEYS = 10_000


class DamageNote(Struct, frozen=True, kw_only=True):
    """Why a task was quarantined. `data` is its stored form, if the store does not keep it elsewhere."""

    task_id: str
    problem: str
    data: bytes = b""


def note_name(task_id: str) -> str:
    return f"{DAMAGED_TASKS}{task_id}"


def encode_damage(task_id: str, problem: str, data: bytes = b"") -> bytes:
    return msgspec.json.encode(DamageNote(task_id=task_id, problem=problem, data=data))


def decode_damage(task_id: str, data: bytes) -> DamagedTask:
    """The error for a task in quarantine."""
    try:
        problem = msgspec.json.decode(data, type=DamageNote).problem
    except UNREADABLE:
        problem = "it cannot be read"
    return DamagedTask(task_id, problem)


def check_stored(task: Task) -> Task:
    """Return the task if ISO 8601 can express its times. Raises ValueError for values that no engine writes."""
    for at in (task.created_at, task.available_at, task.updated_at):
        if not _EARLIEST <= at <= _LATEST:  # false for NaN, too
            raise ValueError(f"{at!r} is not a valid time")
    return task


def check_known_format(stored: int, known: int, problem: object) -> None:
    """Raise StorageError if a newer qo writes the store: its tasks may look damaged to this version."""
    if stored > known:
        raise StorageError(
            f"a task cannot be read. It was not quarantined, because a newer qo writes this store (format {stored};"
            f" this qo knows formats up to {known}); upgrade qo: {problem}"
        )


class DamageLog:
    """Logs each damaged task once."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, damage: Damage) -> None:
        for task_id, problem in damage.items():
            if task_id not in self._reported and len(self._reported) < _MAX_REPORTED_TASKS:
                self._reported.add(task_id)
                log.error(
                    "task %s is damaged and was quarantined; other tasks are not affected: %s",
                    task_id,
                    problem,
                    extra={"task_id": task_id},
                )


def sealed(document: bytes) -> bytes:
    """The document, followed by its checksum."""
    return document + b"\n" + f"{crc32(document):032b}".encode().translate(_TO_SPACE)


def unsealed(data: bytes) -> bytes:
    """The document without the checksum that `sealed` added."""
    return data[:-_SEAL_LENGTH]


def check_seal(data: bytes) -> bool:
    """Return whether the document carries a checksum. Raises ValueError if the checksum does not match."""
    tail = data[-_SEAL_LENGTH:]
    if len(tail) < _SEAL_LENGTH or tail[:1] != b"\n" or tail.strip(b" \t\n"):
        return False
    if int(tail[1:].translate(_FROM_SPACE), 2) != crc32(memoryview(data)[:-_SEAL_LENGTH]):
        raise ValueError("its checksum does not match its content")
    return True


def checksum_of(value: bytes) -> str:
    """The checksum of a large value, which the task that refers to the value stores."""
    return f"{crc32(value):08x}"


class Quarantine:
    """Objects under qo's prefixes that are damaged or foreign. They are ignored, counted, and logged once."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self._unreported: dict[str, str] = {}  # damaged tasks without a note yet, and why

    def put(self, key: str, why: object) -> None:
        if key not in self.keys and len(self.keys) < _MAX_QUARANTINED_KEYS:
            self.keys.add(key)
            _engine_log.error("%s cannot be read and is ignored: %s", key, why)

    def put_task(self, key: str, task_id: str, why: object) -> None:
        if key not in self.keys:
            self._unreported[task_id] = f"{key} does not decode: {why}"
        self.put(key, why)

    def report_later(self, task_id: str, why: str) -> None:
        self._unreported[task_id] = why

    def release_task(self, key: str, task_id: str) -> None:
        """The task can be read, or is gone: it was restored or removed, or only one response was damaged."""
        self.keys.discard(key)
        self._unreported.pop(task_id, None)

    def take_unreported(self) -> dict[str, str]:
        unreported, self._unreported = self._unreported, {}
        return unreported
