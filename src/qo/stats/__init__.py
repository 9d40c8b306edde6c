"""Statistics of settled tasks, counted per minute by every process that settles tasks and kept in the store."""

from qo.stats.archive import MINUTE, PREFIX, compact_stats, read_stats
from qo.stats.durations import BOUNDS, Durations
from qo.stats.recorder import StatsRecorder
from qo.stats.rows import OTHER_TYPES, Interval, Rows, StatsRow, add_up, merge_rows

__all__ = [
    "BOUNDS",
    "MINUTE",
    "OTHER_TYPES",
    "PREFIX",
    "Durations",
    "Interval",
    "Rows",
    "StatsRecorder",
    "StatsRow",
    "add_up",
    "compact_stats",
    "merge_rows",
    "read_stats",
]
