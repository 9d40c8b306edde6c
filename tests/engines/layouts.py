"""The bucket layouts, for tests that apply to each. A new layout is one more line in LAYOUTS."""

from collections.abc import Callable

from qo.bucket import Bucket
from qo.engine import Engine
from qo.engines import sqlite_object
from qo.engines.large_values import LargeValuesEngine
from qo.engines.object_per_task import ObjectPerTaskEngine, TasksOptions
from qo.engines.one_object import CommitMode, OneObjectEngine
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine
from qo.engines.sqlite_object import SqliteObjectEngine
from qo.testing import ManualClock
from tests.engines.compacting_log import cold_log, cold_log_in_shards, compacting_log

Layout = Callable[[Bucket, ManualClock], Engine]

LAYOUTS: dict[str, Layout] = {
    "tasks": lambda bucket, clock: ObjectPerTaskEngine(bucket, clock=clock),
    "one": lambda bucket, clock: OneObjectEngine(bucket, clock=clock),
    "sqlite": lambda bucket, clock: SqliteObjectEngine(bucket, clock=clock),
    "log": lambda bucket, clock: ReplicatedLogEngine(bucket, clock=clock),
}
EVERYTHING_ASIDE: Layout = lambda bucket, clock: LargeValuesEngine(  # noqa: E731 - as the others
    ObjectPerTaskEngine(bucket, clock=clock), bucket, inline=0, clock=clock
)
# Slow variants of others, for `make torture`.
SLOW_VARIANTS: dict[str, Layout] = {"log in cold segments of three shards": cold_log_in_shards}
VARIANTS: dict[str, Layout] = LAYOUTS | {
    "tasks in small pages": lambda bucket, clock: ObjectPerTaskEngine(
        bucket, TasksOptions(ready_page_size=3, promotion_interval=0), clock=clock
    ),
    "tasks with values aside": EVERYTHING_ASIDE,
    "sqlite synced behind": lambda bucket, clock: SqliteObjectEngine(
        bucket, mode=sqlite_object.DurabilityMode.LOCAL, interval=0, clock=clock
    ),
    "log in small blocks": compacting_log,
    "log in cold segments": cold_log,
    "log in four shards": lambda bucket, clock: ReplicatedLogEngine(bucket, LogOptions(shard_count=4), clock=clock),
    "one directly": lambda bucket, clock: OneObjectEngine(bucket, mode=CommitMode.DIRECT, clock=clock),
}
