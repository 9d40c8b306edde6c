"""qo: a task queue that needs no broker. It runs on the storage you already have."""

from qo.app import App, Submission, TaskFunction
from qo.client import Client, Consumer, HeartbeatManager, Producer, QueueState, Settings, Submitted, connect
from qo.codec import decode
from qo.errors import (
    Conflict,
    ConflictError,
    DamagedTask,
    Fail,
    InvalidSetting,
    InvalidTask,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    QoError,
    Refused,
    ResultTimeout,
    Retry,
    StorageError,
    TaskFailed,
    TaskNotFound,
    WrongStatus,
)
from qo.model import Event, Filter, PromotionTimes, RetryPolicy, Status, Task, cursor
from qo.s3_store import S3Store
from qo.storages import GCSStorage, InMemoryStorage, ObjectStorage, S3Storage
from qo.tasks import current_task
from qo.tq import tq
from qo.version import __version__

__all__ = [
    "App",
    "Client",
    "Conflict",
    "ConflictError",
    "Consumer",
    "DamagedTask",
    "Event",
    "Fail",
    "Filter",
    "GCSStorage",
    "HeartbeatManager",
    "InMemoryStorage",
    "InvalidSetting",
    "InvalidTask",
    "KeyReused",
    "LeaseLost",
    "ObjectStorage",
    "OutcomeUnknown",
    "Producer",
    "PromotionTimes",
    "QoError",
    "QueueState",
    "Refused",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "S3Storage",
    "S3Store",
    "Settings",
    "Status",
    "StorageError",
    "Submission",
    "Submitted",
    "Task",
    "TaskFailed",
    "TaskFunction",
    "TaskNotFound",
    "WrongStatus",
    "__version__",
    "connect",
    "current_task",
    "cursor",
    "decode",
    "tq",
]
