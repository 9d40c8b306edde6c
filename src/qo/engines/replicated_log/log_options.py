"""Settings of a replicated log."""

from enum import StrEnum

from msgspec import Struct

from qo.engines.replicated_log.keys import MAX_SHARDS
from qo.errors import InvalidSetting


class SubmitMode(StrEnum):
    AUTO = "auto"  # the inbox if a large replica would have to be loaded, or if a process that only submits loses races
    INBOX = "inbox"  # every new task goes into the inbox: the process needs no right to read or write the log
    DIRECT = "direct"  # every new task is committed to the log


class LogOptions(Struct, frozen=True, kw_only=True):
    shard_count: int | None = None  # of the log; None: as it was created, and 1 for a new one
    submit: SubmitMode = SubmitMode.AUTO
    # The others have no option in the URL: all processes that use a log must agree on them. Tests change them.
    block_size: int = 64  # records that are merged into one
    image_threshold: int = 4 * 1024 * 1024  # stored bytes of records after which an image may be due
    min_record_age: float = 86_400.0  # seconds; younger records are never deleted
    trust: float = 3_600.0  # seconds for which a proof of the log's end makes the check of the floor unnecessary

    segment_size: int = 4_000  # tasks that are moved into one cold segment, at most
    segment_span: int = 4_096  # records that may be written between the reading of its tasks and their removal
    hot_tasks: int = 200_000  # ready tasks of a lane that stay in the tables
    kept_tasks: int = 100_000  # of them, if there are more: the first ones
    thaw_time: float = 60.0  # seconds after a process has used a segment in which it moves no tasks into others
    cold_age: float = 3_600.0  # seconds after which finished tasks may be moved into a segment

    def __post_init__(self) -> None:
        if self.shard_count is not None and not 1 <= self.shard_count <= MAX_SHARDS:
            raise InvalidSetting(f"shard_count={self.shard_count} is not a number from 1 to {MAX_SHARDS}")
        if self.trust > self.min_record_age / 2:
            raise InvalidSetting("a process must not trust a proof for more than half the age of deleted records")
