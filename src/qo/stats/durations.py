"""A histogram of durations with a few fixed buckets, small enough to store one per minute."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec import Struct, field

BOUNDS: Final = (  # seconds: the upper bounds of the buckets; one more bucket holds longer durations
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0,
)  # fmt: skip


_bucket_of = partial(bisect_left, BOUNDS)


class Durations(Struct, array_like=True):
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
