"""qo: a task queue that needs no broker. It runs on the storage you already have."""

from typing import TYPE_CHECKING

from qo.errors import (
    Cancelled,
    Conflict,
    ConflictError,
    DamagedTask,
    DuplicateTask,
    EncryptedValue,
    Fail,
    InvalidSetting,
    InvalidTask,
    InvalidWorkflow,
    KeyReused,
    LeaseLost,
    NewerFormat,
    ObjectTooLarge,
    OutcomeUnknown,
    QoError,
    Refused,
    ResultTimeout,
    Retry,
    ScheduleNotFound,
    StorageError,
    TaskFailed,
    TaskNotFound,
    WorkflowNotFound,
    WrongStatus,
)
from qo.lazy_names import lazy_names
from qo.version import __version__

if TYPE_CHECKING:
    from qo.app import App, TaskFunction
    from qo.client import (
        Client,
        Consumer,
        HeartbeatManager,
        Producer,
        QueueState,
        Settings,
        TaskHandle,
        TaskOptions,
        connect,
    )
    from qo.codec import decode
    from qo.encryption import Encrypted
    from qo.explanation import Explanation
    from qo.hooks import TaskEvent, WorkerContext, WorkerEvent, current_worker
    from qo.model import Event, Filter, Limit, PendingKind, PromotionTimes, RetryPolicy, Status, Task, Unique, cursor
    from qo.running_task import RunningTask, current_task
    from qo.s3_store import S3Store
    from qo.schedules.view import ScheduleInfo
    from qo.storages import GCSStorage, InMemoryStorage, LocalFileSystemStorage, ObjectStorage, S3Storage
    from qo.sync import SyncTaskHandle
    from qo.task_batch import Batch, batch
    from qo.task_queue import tq
    from qo.workflow import Signature, Workflow, chain, group
    from qo.workflow_additions import current_workflow
    from qo.workflow_run import WorkflowRun
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "qo.app": "App TaskFunction",
            "qo.task_batch": "Batch batch",
            "qo.client": "Client Consumer HeartbeatManager Producer QueueState Settings TaskHandle TaskOptions connect",
            "qo.codec": "decode",
            "qo.encryption": "Encrypted",
            "qo.hooks": "TaskEvent WorkerContext WorkerEvent current_worker",
            "qo.explanation": "Explanation",
            "qo.model": "Event Filter Limit PendingKind PromotionTimes RetryPolicy Status Task Unique cursor",
            "qo.running_task": "RunningTask current_task",
            "qo.s3_store": "S3Store",
            "qo.schedules.view": "ScheduleInfo",
            "qo.sync": "SyncTaskHandle",
            "qo.storages": "GCSStorage InMemoryStorage LocalFileSystemStorage ObjectStorage S3Storage",
            "qo.task_queue": "tq",
            "qo.workflow_additions": "current_workflow",
            "qo.workflow": "Signature Workflow chain group",
            "qo.workflow_run": "WorkflowRun",
        },
    )

__all__ = [
    "App",
    "Batch",
    "Cancelled",
    "Client",
    "Conflict",
    "ConflictError",
    "Consumer",
    "DamagedTask",
    "DuplicateTask",
    "Encrypted",
    "EncryptedValue",
    "Event",
    "Explanation",
    "Fail",
    "Filter",
    "GCSStorage",
    "HeartbeatManager",
    "InMemoryStorage",
    "InvalidSetting",
    "InvalidTask",
    "InvalidWorkflow",
    "KeyReused",
    "LeaseLost",
    "Limit",
    "LocalFileSystemStorage",
    "NewerFormat",
    "ObjectStorage",
    "ObjectTooLarge",
    "OutcomeUnknown",
    "PendingKind",
    "Producer",
    "PromotionTimes",
    "QoError",
    "QueueState",
    "Refused",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "RunningTask",
    "S3Storage",
    "S3Store",
    "ScheduleInfo",
    "ScheduleNotFound",
    "Settings",
    "Signature",
    "Status",
    "StorageError",
    "SyncTaskHandle",
    "Task",
    "TaskEvent",
    "TaskFailed",
    "TaskFunction",
    "TaskHandle",
    "TaskNotFound",
    "TaskOptions",
    "Unique",
    "WorkerContext",
    "WorkerEvent",
    "Workflow",
    "WorkflowNotFound",
    "WorkflowRun",
    "WrongStatus",
    "__version__",
    "batch",
    "chain",
    "connect",
    "current_task",
    "current_worker",
    "current_workflow",
    "cursor",
    "decode",
    "group",
    "tq",
]


def __dir__() -> list[str]:
    return __all__
