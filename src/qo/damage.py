"""Stored tasks that cannot be read, and the notes that record them.

An engine that finds a damaged task omits it from the result, removes it from its indexes so that no claim finds it
again, and keeps its bytes. The note `quarantine/tasks/<id>` reports it to every other process.
"""

import logging
from collections.abc import Mapping

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
