"""Stored tasks that cannot be read: what is damaged about one, and the note that says so.

An engine that meets a damaged task leaves it out of its answer, takes it out of its lists so that no claim meets it
again, and keeps its bytes. The note `quarantine/tasks/<id>` tells everybody else.
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

_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_799.0  # what ISO 8601 can show: years 1 to 9999
_MOST_REPORTED = 10_000

Damage = Mapping[str, str]  # ids of tasks that cannot be read, and why


class DamageNote(Struct, frozen=True, kw_only=True):
    """Why a task was set aside. `data` is what was stored, where the store does not keep it in its place."""

    task_id: str
    problem: str
    data: bytes = b""


def note_name(task_id: str) -> str:
    return f"{DAMAGED_TASKS}{task_id}"


def encode_damage(task_id: str, problem: str, data: bytes = b"") -> bytes:
    return msgspec.json.encode(DamageNote(task_id=task_id, problem=problem, data=data))


def decode_damage(task_id: str, data: bytes) -> DamagedTask:
    """The error to raise for a task that was set aside."""
    try:
        problem = msgspec.json.decode(data, type=DamageNote).problem
    except UNREADABLE:
        problem = "it cannot be read"
    return DamagedTask(task_id, problem)


def check_stored(task: Task) -> Task:
    """The task, if its instants can be shown. Raises ValueError for values that no engine has written."""
    for at in (task.created_at, task.available_at, task.updated_at):
        if not _EARLIEST <= at <= _LATEST:  # also NaN
            raise ValueError(f"{at!r} is not an instant")
    return task


def check_known_format(stored: int, known: int, problem: object) -> None:
    """Raises StorageError where a newer build has written: this one cannot tell its tasks from damaged ones."""
    if stored > known:
        raise StorageError(
            f"a task cannot be read, and nothing is set aside, because a newer qo writes this store (format {stored};"
            f" this one knows formats up to {known}); upgrade qo: {problem}"
        )


class DamageLog:
    """Says of each damaged task once what is wrong with it."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, damage: Damage) -> None:
        for task_id, problem in damage.items():
            if task_id not in self._reported and len(self._reported) < _MOST_REPORTED:
                self._reported.add(task_id)
                log.error(
                    "task %s is damaged and set aside, everything else goes on: %s",
                    task_id,
                    problem,
                    extra={"task_id": task_id},
                )
