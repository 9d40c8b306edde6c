"""What a command's exit code says. Scripts rely on these: they do not change."""

from enum import IntEnum

from qo.errors import (
    BadBatch,
    Conflict,
    InvalidSetting,
    InvalidTask,
    KeyReused,
    LeaseLost,
    QoError,
    StorageError,
    TaskNotFound,
    WrongStatus,
)


class Exit(IntEnum):
    CLEAN = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    STORAGE = 5
    STUCK = 6
    INTERRUPTED = 130


MEANINGS = {
    Exit.CLEAN: "done",
    Exit.ERROR: "an error; the awaited task failed or is not finished yet",
    Exit.USAGE: "a wrong option, value or task description",
    Exit.NOT_FOUND: "no task has this id",
    Exit.REFUSED: "the task's status does not allow this, its lease is lost, or its idempotency key is another's",
    Exit.STORAGE: "the store is missing, unreachable, full or not ours",
    Exit.STUCK: "the worker could not go on",
    Exit.INTERRUPTED: "interrupted",
}

_CODES: tuple[tuple[type[QoError], Exit], ...] = (
    (InvalidTask, Exit.USAGE),
    (InvalidSetting, Exit.USAGE),
    (BadBatch, Exit.USAGE),
    (KeyReused, Exit.REFUSED),
    (TaskNotFound, Exit.NOT_FOUND),
    (WrongStatus, Exit.REFUSED),
    (LeaseLost, Exit.REFUSED),
    (Conflict, Exit.STORAGE),
    (StorageError, Exit.STORAGE),
)


def code_of(error: QoError) -> Exit:
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.ERROR)
