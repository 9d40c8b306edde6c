"""What the rooms of this layout share."""

from dataclasses import dataclass

from qo.bucket import Bucket
from qo.clock import Clock
from qo.engines.per_task.documents import Documents
from qo.engines.per_task.index import Index
from qo.engines.per_task.lanes import Lanes
from qo.engines.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class Store:
    bucket: Bucket
    documents: Documents
    index: Index
    lanes: Lanes
    quarantine: Quarantine
    clock: Clock


def store(bucket: Bucket, clock: Clock | None) -> Store:
    """Time is the bucket's unless a clock is given."""
    quarantine = Quarantine()
    documents = Documents(bucket, quarantine)
    return Store(
        bucket, documents, Index(bucket, quarantine), Lanes(bucket, documents), quarantine, clock or bucket.now
    )
