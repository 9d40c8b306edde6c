"""The exit codes of commands. Scripts rely on them, so they do not change."""

from enum import IntEnum

from qo.errors import (
    BadBatch,
    Conflict,
    InvalidSetting,
    InvalidTask,
    InvalidWorkflow,
    KeyReused,
    LeaseLost,
    NameNotFound,
    QoError,
    ScheduleNotFound,
    StorageError,
    TaskNotFound,
    WorkflowNotFound,
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
    Exit.CLEAN: "success",
    Exit.ERROR: "an error; or the task that --wait waited for failed or has not finished",
    Exit.USAGE: "an invalid option, value or task",
    Exit.NOT_FOUND: "there is no such task, batch, workflow, schedule, worker, token or session",
    Exit.REFUSED: "the task's status does not allow this, its lease is lost, or its idempotency key is in use",
    Exit.STORAGE: "the store is missing, unreachable or full, or access was denied",
    Exit.STUCK: "the worker could not continue",
    Exit.INTERRUPTED: "interrupted",
}

_CODES: tuple[tuple[type[QoError], Exit], ...] = (
    (InvalidTask, Exit.USAGE),
    (InvalidSetting, Exit.USAGE),
    (InvalidWorkflow, Exit.USAGE),
    (BadBatch, Exit.USAGE),
    (KeyReused, Exit.REFUSED),
    (TaskNotFound, Exit.NOT_FOUND),
    (ScheduleNotFound, Exit.NOT_FOUND),
    (WorkflowNotFound, Exit.NOT_FOUND),
    (NameNotFound, Exit.NOT_FOUND),
    (WrongStatus, Exit.REFUSED),
    (LeaseLost, Exit.REFUSED),
    (Conflict, Exit.STORAGE),
    (StorageError, Exit.STORAGE),
)


def code_of(error: QoError) -> Exit:
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.ERROR)
