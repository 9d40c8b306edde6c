"""The options of the layout, and the objects that its parts share."""

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from qo.bucket import Bucket
from qo.clock import Clock
from qo.engines.object_per_task.index import Index, LaneDirectory
from qo.engines.object_per_task.task_store import TaskStore
from qo.engines.quarantine import Quarantine


class IndexMode(StrEnum):
    INDEX_ONLY = "index-only"  # claims use only the index
    HYBRID = "hybrid"  # also reads some tasks from time to time, to find those that the index lacks
    LOG_SCAN = "log-scan"  # claims read the tasks themselves: slow, for a damaged index


class TasksOptions(Struct, frozen=True, kw_only=True):
    index_mode: IndexMode = IndexMode.HYBRID
    ready_page_size: int = 1000  # entries read at a time; a store lists up to a thousand per request
    log_scan_page_size: int = 50  # tasks read by one scan
    scan_interval: float = 3600.0  # seconds between scans
    promotion_interval: float = 10.0  # seconds between reads of promoted tasks in a deep queue
    shards: tuple[str, ...] = ()  # claims take only ids that start with one of these digits; empty: all


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
