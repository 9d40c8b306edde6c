"""The errors that qo raises.

    QoError
    ├── InvalidTask       the submitted task is invalid; the message names the field
    ├── InvalidSetting    a URL, option or environment variable is invalid
    ├── BadBatch          a batch contains the same task twice
    ├── KeyReused         the idempotency key belongs to a task with another payload; nothing was stored
    │   └── DuplicateTask    a task with the same unique arguments exists
    ├── EncryptedValue    a payload or result is encrypted with a key that this process does not have
    ├── TaskNotFound      no task has this id
    ├── ScheduleNotFound  no schedule has this name
    ├── NameNotFound      no worker, token or session has this name
    ├── InvalidWorkflow   the graph of a workflow is invalid; nothing was stored
    ├── WorkflowNotFound  no workflow has this id
    ├── WrongStatus       the task's status does not allow this
    ├── LeaseLost         the task's lease expired, or the task was cancelled
    ├── TaskFailed        the task finished without a result
    ├── ResultTimeout     the task has not finished yet
    ├── Conflict          a compare-and-set write lost its race; reload and try again
    └── StorageError      the store could not be reached, is full, or denied access
        ├── Refused          the store rejects this, and repeating it does not help
        │   ├── ObjectTooLarge   the store rejects an object because of its size; submit fewer tasks in one call
        │   ├── NewerFormat      a newer qo has written the store; this version must not use it
        │   ├── DamagedTask      a stored task cannot be read; the others can
        │   └── DamagedNote      a stored note cannot be read; the others can
        └── OutcomeUnknown   the write may or may not have succeeded; repeating it is safe

Each error has `task_id`, if it concerns one task, and `cause`, the error of the driver or storage.
Two more are raised by handlers and caught by the worker: `Retry` and `Fail`. One is raised in handlers by the worker:
`Cancelled`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qo.model import Task


class QoError(Exception):
    """Base class of all errors of qo."""

    task_id: str | None = None  # of the task that the error concerns

    def __init__(self, *message: object, task_id: str | None = None) -> None:
        super().__init__(*message)
        if task_id is not None:
            self.task_id = task_id

    @property
    def cause(self) -> BaseException | None:
        """The error of the driver or storage."""
        return self.__cause__


class InvalidTask(QoError):
    """The submitted task is invalid."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class InvalidSetting(QoError):
    """A URL, option or environment variable is invalid."""


class BadBatch(QoError):
    """A batch contains the same task twice. Batches are unordered, so the result would not be defined."""


class KeyReused(QoError):
    """The idempotency key belongs to a task with another payload. See `task_id`."""


class DuplicateTask(KeyReused):
    """A task with the same unique arguments exists, and the submission does not accept it. See `task_id`."""


class EncryptedValue(QoError):
    """A payload or result is encrypted with a key that this process does not have."""

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"the value is encrypted with key {key_id}, which this process does not have;"
            " add it to codec=qo.Encrypted(keys=[...]), or to QO_ENCRYPTION_KEYS for the command line"
        )
        self.key_id = key_id


class TaskNotFound(QoError):
    """No task has this id."""


class ScheduleNotFound(QoError):
    """No schedule has this name."""


class NameNotFound(QoError):
    """No worker, token or session has this name."""


class InvalidWorkflow(QoError):
    """The graph of a workflow is invalid; nothing was stored."""


class WorkflowNotFound(QoError):
    """No workflow has this id."""


class WrongStatus(QoError):
    """The task's status does not allow this."""


class LeaseLost(QoError):
    """The task's lease expired, or the task was cancelled."""


class TaskFailed(QoError):
    """The task finished without a result."""

    def __init__(self, task: "Task", *, kind: str) -> None:
        super().__init__(f"task {task.id} is {task.status}: {task.error or 'it has no result'}", task_id=task.id)
        self.task = task
        self.error = task.error  # of the last failed attempt, if there was one
        self.kind = kind  # error, timeout, lost, unknown_type, cancelled or parent


class ResultTimeout(QoError):
    """The task has not finished yet."""


class Conflict(QoError):
    """Another process has written first; reload and try again."""


ConflictError = Conflict  # the name used with S3Store


class StorageError(QoError):
    """The store could not be reached, is full, or denied access. See `cause`."""


class Refused(StorageError):
    """The store rejects this, and repeating it does not help: wrong credentials, no permission, no such bucket."""


class ObjectTooLarge(Refused):
    """The store, or a proxy in front of it, rejects an object because of its size. Submit fewer tasks in one call."""


class NewerFormat(Refused):
    """A newer qo has written the store in a format that this version must not use. Upgrade qo."""


class DamagedTask(Refused):
    """A stored task cannot be read. Its bytes are kept, and `qo doctor` reports it."""

    def __init__(self, task_id: str, problem: str) -> None:
        message = f"task {task_id} is damaged: {problem}; restore it from a backup, or remove it with `qo delete`"
        super().__init__(message, task_id=task_id)
        self.problem = problem


class DamagedNote(Refused):
    """A stored note cannot be read. Contains its bytes, so that they can be kept."""

    def __init__(self, name: str, data: bytes, version: str, problem: str) -> None:
        super().__init__(f"note {name!r} cannot be read: {problem}; see `qo doctor`")
        self.name, self.data, self.version, self.problem = name, data, version, problem


class OutcomeUnknown(StorageError):
    """The write may or may not have succeeded.

    It is safe to repeat a submission with the same id or key, and a settlement under the same lease. Before repeating
    another write, read what is stored.
    """


def is_size_refusal(error: BaseException) -> bool:
    """Whether a write failed because the store refuses an object of this size. Parts of the write may be stored."""
    return isinstance(error, ObjectTooLarge) or (
        isinstance(error, OutcomeUnknown) and isinstance(error.cause, ObjectTooLarge)
    )


class Retry(Exception):
    """Raised by a handler: retry the task after `after` seconds, or after its back-off."""

    def __init__(self, reason: str = "the handler requested a retry", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Cancelled(BaseException):
    """Raised in a plain handler whose attempt is stopped: the task was cancelled, its lease is lost, the worker ends.

    An async handler gets `asyncio.CancelledError` instead. A handler that catches it to clean up should raise it again.
    It is a BaseException, so that `except Exception` does not catch it.
    """


class Fail(Exception):
    """Raised by a handler: fail the task permanently, even if retries are left."""
