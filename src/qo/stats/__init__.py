"""Statistics of settled tasks, counted per minute by every process that settles tasks and kept in the store."""

from qo.stats.archive import MINUTE, PREFIX, StatsRecorder, compact_stats, read_stats
from qo.stats.rows import BOUNDS, OTHER_TYPES, Durations, Interval, Rows, StatsRow, add_up, merge_rows

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
