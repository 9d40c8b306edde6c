"""Counts of settled tasks in an interval of time, by type and priority level, and histograms of their durations."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

from msgspec import Struct, field

from qo.model import LevelWord

BOUNDS: Final = (  # seconds: the upper bounds of the buckets; one more bucket holds longer durations
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0,
)  # fmt: skip


_bucket_of = partial(bisect_left, BOUNDS)


class Durations(Struct, array_like=True):
    """A histogram of durations with a few fixed buckets, small enough to store one per minute."""

    total: float = 0.0  # seconds, of all together
    counts: dict[int, int] = field(default_factory=dict)  # by the index of the bucket, without the empty ones

    def observe(self, seconds: float) -> None:
        self.observe_all([seconds])

    def observe_all(self, durations: Sequence[float]) -> None:
        """Add durations. A negative one, caused by clocks that differ, counts as 0."""
        if not durations:
            return
        if min(durations) < 0:
            durations = [max(0.0, seconds) for seconds in durations]
        self.total += sum(durations)
        for bucket, number in Counter(map(_bucket_of, durations)).items():
            self.counts[bucket] = self.counts.get(bucket, 0) + number

    def merge(self, other: "Durations") -> None:
        self.total += other.total
        for bucket, number in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + number

    @property
    def number(self) -> int:
        return sum(self.counts.values())

    @property
    def mean(self) -> float | None:
        return self.total / self.number if self.counts else None

    def percentile(self, share: float) -> float | None:
        """An estimate that assumes durations are spread evenly over their bucket; None if there are none."""
        rank = share * self.number
        for bucket in sorted(self.counts):
            number = self.counts[bucket]
            if rank <= number:
                lower = BOUNDS[bucket - 1] if bucket else 0.0
                upper = BOUNDS[bucket] if bucket < len(BOUNDS) else lower
                return lower + (upper - lower) * rank / number
            rank -= number
        return None


OTHER_TYPES = "(other types)"  # counts of types beyond `MAX_TYPES`; not a valid type name
MAX_TYPES = 100  # types counted by name in one interval of one process, to bound the note's size

Ending = Literal["completed", "failed"]


class StatsRow(Struct, kw_only=True, omit_defaults=True):
    """Attempts are counted when they end; a lost attempt ends when the monitor expires its lease."""

    completed: int = 0
    cancelled: int = 0
    dead_lettered: int = 0  # failed tasks without retries left
    retried: dict[str, int] = field(default_factory=dict)  # failed attempts that are retried, by reason
    failed: dict[str, int] = field(default_factory=dict)  # tasks that failed permanently, by reason
    promoted: dict[LevelWord, int] = field(default_factory=dict)  # claimed at a higher level because of ageing
    wait: Durations = field(default_factory=Durations)  # from when the task was due to the start of the attempt
    run: Durations = field(default_factory=Durations)  # of the handler, regardless of its outcome
    total: dict[Ending, Durations] = field(default_factory=dict)  # from the submission to the end, by status

    def merge(self, other: "StatsRow") -> None:
        self.completed += other.completed
        self.cancelled += other.cancelled
        self.dead_lettered += other.dead_lettered
        for mine, theirs in ((self.retried, other.retried), (self.failed, other.failed)):
            for reason, number in theirs.items():
                mine[reason] = mine.get(reason, 0) + number
        for level, number in other.promoted.items():
            self.promoted[level] = self.promoted.get(level, 0) + number
        self.wait.merge(other.wait)
        self.run.merge(other.run)
        for ending, durations in other.total.items():
            self.total.setdefault(ending, Durations()).merge(durations)

    @property
    def lost(self) -> int:
        """Attempts whose leases expired."""
        return self.retried.get("lost", 0) + self.failed.get("lost", 0)


class RowKey(NamedTuple):
    type: str
    level: LevelWord


Rows = dict[RowKey, StatsRow]


class Interval(NamedTuple):
    start: int  # seconds since the epoch
    seconds: int
    rows: Rows


class StoredRow(NamedTuple):
    type: str
    level: LevelWord
    row: StatsRow


class StoredInterval(NamedTuple):
    start: int
    seconds: int
    rows: list[StoredRow]


class StatsDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One note: the counts of one process, or of all, in one hour."""

    intervals: list[StoredInterval]
    merged: frozenset[str] = frozenset()  # the processes whose notes are included


def merge_rows(into: Rows, rows: Rows) -> None:
    for key, row in rows.items():
        row_of(into, key).merge(row)


def add_up(intervals: Iterable[Interval]) -> Rows:
    total: Rows = {}
    for interval in intervals:
        merge_rows(total, interval.rows)
    return total


def row_of(rows: Rows, key: RowKey) -> StatsRow:
    row = rows.get(key)
    if row is None:
        if len(rows) >= MAX_TYPES:
            key = RowKey(OTHER_TYPES, key.level)
        row = rows.setdefault(key, StatsRow())
    return row


def to_stored(interval: Interval) -> StoredInterval:
    return StoredInterval(
        interval.start, interval.seconds, [StoredRow(*key, row) for key, row in interval.rows.items()]
    )


def from_stored(stored: StoredInterval) -> Interval:
    rows: Rows = {}
    for each in stored.rows:
        row_of(rows, RowKey(each.type, each.level)).merge(each.row)
    return Interval(stored.start, stored.seconds, rows)
