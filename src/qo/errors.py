"""Everything qo raises.

QoError
├── InvalidTask       what was submitted cannot be a task; names the field and says what to do
├── InvalidSetting    a URL, option or variable makes no sense
├── BadBatch          a batch names the same task twice
├── KeyReused         the idempotency key belongs to a task with another payload; nothing was stored for it
├── TaskNotFound      no task has this id
├── WrongStatus       the task's status does not allow this
├── LeaseLost         the task is no longer ours to settle or extend
├── TaskFailed        the awaited task ended without a result
├── ResultTimeout     the awaited task has not ended yet
├── Conflict          a compare-and-set write lost its race; reload and try again
└── StorageError      the store could not be reached, is full, or is not ours
    ├── Refused          the store will not do this, however often it is asked
    │   ├── NewerFormat      a newer qo has written the store; this one must not touch it
    │   ├── DamagedTask      a stored task cannot be read; the others can
    │   └── DamagedNote      a stored note cannot be read; the others can
    └── OutcomeUnknown   the store may or may not have taken the write; repeating it is harmless

Each has `task_id`, if it is about one task, and `cause`, the error of a driver or storage behind it.
Two more are raised by handlers and caught by the worker: `Retry` and `Fail`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qo.model import Task


class QoError(Exception):
    """Base of every error qo raises."""

    task_id: str | None = None  # of the one task it is about

    def __init__(self, *message: object, task_id: str | None = None) -> None:
        super().__init__(*message)
        if task_id is not None:
            self.task_id = task_id

    @property
    def cause(self) -> BaseException | None:
        """The error of a driver or storage behind this one."""
        return self.__cause__


class InvalidTask(QoError):
    """What was submitted cannot be a task."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class InvalidSetting(QoError):
    """A URL, option or variable makes no sense."""


class BadBatch(QoError):
    """A batch names the same task twice, so its order would matter."""


class KeyReused(QoError):
    """The idempotency key belongs to a task with another payload. See `task_id`."""


class TaskNotFound(QoError):
    """No task has this id."""


class WrongStatus(QoError):
    """The task's status does not allow this."""


class LeaseLost(QoError):
    """The task is no longer ours: its lease expired, or someone cancelled it."""


class TaskFailed(QoError):
    """The awaited task ended without a result."""

    def __init__(self, task: "Task", *, kind: str) -> None:
        super().__init__(f"task {task.id} is {task.status}: {task.error or 'it has no result'}", task_id=task.id)
        self.task = task
        self.error = task.error  # of its last attempt; None if it was cancelled before any failed
        self.kind = kind  # error, timeout, lost, unknown_type or cancelled


class ResultTimeout(QoError):
    """The awaited task has not ended yet."""


class Conflict(QoError):
    """A compare-and-set write lost its race; reload and try again."""


ConflictError = Conflict  # its name in the world of S3Store


class StorageError(QoError):
    """The store could not be reached, is full, or is not ours. See `cause`."""


class Refused(StorageError):
    """The store will not do this, however often it is asked: wrong credentials, no permission, no such bucket."""


class NewerFormat(Refused):
    """A newer qo has written the store in a way that this one must not touch. Upgrade qo."""


class DamagedTask(Refused):
    """A stored task cannot be read. Its bytes are left as they are, and `qo doctor` names it."""

    def __init__(self, task_id: str, problem: str) -> None:
        message = f"task {task_id} is damaged: {problem}; restore it from a copy, or remove it with `qo delete`"
        super().__init__(message, task_id=task_id)
        self.problem = problem


class DamagedNote(Refused):
    """A stored note cannot be read. Carries its bytes, so that they can be kept."""

    def __init__(self, name: str, data: bytes, version: str, problem: str) -> None:
        super().__init__(f"note {name!r} cannot be read: {problem}; see `qo doctor`")
        self.name, self.data, self.version, self.problem = name, data, version, problem


class OutcomeUnknown(StorageError):
    """The store may or may not have taken the write; repeating it is harmless."""


class Retry(Exception):
    """Raised by a handler: try again, `after` seconds from now (default: the task's own back-off)."""

    def __init__(self, reason: str = "the handler asked for a retry", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Fail(Exception):
    """Raised by a handler: give up now, whatever retries are left."""
