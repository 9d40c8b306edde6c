"""The objects that the parts of this layout share."""

from dataclasses import dataclass

from qo.bucket import Bucket
from qo.clock import Clock
from qo.engines.object_per_task.index import Index
from qo.engines.object_per_task.lanes import LaneDirectory
from qo.engines.object_per_task.task_store import TaskStore
from qo.engines.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class TasksLayout:
    bucket: Bucket
    documents: TaskStore
    index: Index
    lanes: LaneDirectory
    quarantine: Quarantine
    clock: Clock


def open_layout(bucket: Bucket, clock: Clock | None) -> TasksLayout:
    """Uses the bucket's clock unless a clock is given."""
    quarantine = Quarantine()
    documents = TaskStore(bucket, quarantine)
    return TasksLayout(
        bucket, documents, Index(bucket, quarantine), LaneDirectory(bucket, documents), quarantine, clock or bucket.now
    )
