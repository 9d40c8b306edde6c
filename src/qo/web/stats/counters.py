"""Prometheus counters from the statistics in the store, which cover all processes.

A counter must not decrease while its process runs, but the store deletes old statistics. The server therefore adds the
growth between two reads. It starts at zero, so that a restart does not count old work again.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from qo.model import Status
from qo.stats import BOUNDS, MINUTE, OTHER_TYPES, Durations, Interval, StatsRow
from qo.stats.rows import MAX_TYPES, RowKey
from qo.transitions import REASONS

LEVELS: Final = ("high", "medium", "low")
ENDED: Final = (Status.COMPLETED.value, Status.FAILED.value)
_REMEMBERED = 2 * 3600  # seconds; longer than a minute is read
_SECONDS = -1  # the key of a histogram's sum, among the numbers of its buckets

Field = tuple[str | int, ...]
Numbers = dict[Field, float]


class StoreCounters(Collector):
    def __init__(self) -> None:
        self._known: dict[int, Numbers] | None = None  # by minute; None before the first read
        self._totals: Numbers = {}
        self._types: set[str] = set()

    def update(self, minutes: Iterable[Interval]) -> None:
        """Add the growth since the last read."""
        seen = {minute.start: self._numbers(minute) for minute in minutes if minute.seconds == MINUTE}
        if self._known is None:
            self._known = seen
            return
        for at, numbers in seen.items():
            before = self._known.setdefault(at, {})
            for field, number in numbers.items():
                if (grown := number - before.get(field, 0)) > 0:
                    self._totals[field] = self._totals.get(field, 0) + grown
                    before[field] = number
        forgotten = max(self._known, default=0) - _REMEMBERED
        for at in [at for at in self._known if at < forgotten]:
            del self._known[at]

    def _numbers(self, minute: Interval) -> Numbers:
        numbers: Numbers = {}
        for key, row in minute.rows.items():
            for field, number in _fields(self._label(key), row):
                numbers[field] = numbers.get(field, 0) + number
        return numbers

    def _label(self, key: RowKey) -> RowKey:
        """Replaces the type of the label once there are too many types."""
        if key.type not in self._types:
            if len(self._types) >= MAX_TYPES:
                return RowKey(OTHER_TYPES, key.level)
            self._types.add(key.type)
        return key

    # --- metrics

    def collect(self) -> Iterator[Metric]:
        promoted = CounterMetricFamily(
            "tasks_promoted_total", "Tasks claimed at a higher level because of ageing.", labels=["from", "to"]
        )
        for above, level in enumerate(LEVELS):
            for higher in LEVELS[:above]:
                promoted.add_metric([level, higher], self._total("promoted", level, higher))
        yield promoted
        retries = CounterMetricFamily(
            "task_retries_total", "Failed attempts that are retried.", labels=["priority", "reason"]
        )
        for level in LEVELS:
            for reason in REASONS:
                retries.add_metric([level, reason], self._total("retried", level, reason))
        yield retries
        failed = CounterMetricFamily("tasks_failed_total", "Failed attempts.", labels=["reason"])
        for reason in REASONS:
            failed.add_metric([reason], self._total("attempt_failed", reason))
        yield failed
        yield CounterMetricFamily(
            "tasks_dlq_total", "Tasks whose retries were used up.", value=self._total("dead_lettered")
        )
        yield from self._histograms()

    def _histograms(self) -> Iterator[Metric]:
        whole = HistogramMetricFamily(
            "task_duration_seconds", "Time from submission to the end.", labels=["priority", "status"]
        )
        for level in LEVELS:
            for ending in ENDED:
                self._add_histogram(whole, [level, ending], "total", level, ending)
        yield whole
        for name, help_, field in (
            ("task_run_seconds", "Run time of handlers, for all outcomes.", "run"),
            ("task_wait_seconds", "Time from when a task was due to the start of its attempt.", "wait"),
        ):
            family = HistogramMetricFamily(name, help_, labels=["type"])
            for type_ in sorted(self._types):
                self._add_histogram(family, [type_], field, type_)
            yield family

    def _add_histogram(self, family: HistogramMetricFamily, labels: list[str], *field: str) -> None:
        buckets, below = [], 0.0
        for number, bound in enumerate(BOUNDS):
            below += self._total(*field, number)
            buckets.append((repr(bound), below))
        buckets.append(("+Inf", below + self._total(*field, len(BOUNDS))))
        family.add_metric(labels, buckets, self._total(*field, _SECONDS))

    def _total(self, *field: str | int) -> float:
        return self._totals.get(field, 0)


def _fields(key: RowKey, row: StatsRow) -> Iterator[tuple[Field, float]]:
    """The numbers of a row, by the key of the metric."""
    level = key.level
    for reason, number in row.retried.items():
        yield ("retried", level, reason), number
        yield ("attempt_failed", reason), number
    for reason, number in row.failed.items():
        yield ("attempt_failed", reason), number
    for higher, number in row.promoted.items():
        yield ("promoted", level, higher), number
    yield ("dead_lettered",), row.dead_lettered
    for ending, durations in row.total.items():
        yield from _buckets(("total", level, ending), durations)
    yield from _buckets(("run", key.type), row.run)
    yield from _buckets(("wait", key.type), row.wait)


def _buckets(field: Field, durations: Durations) -> Iterator[tuple[Field, float]]:
    for bucket, number in durations.counts.items():
        yield (*field, bucket), number
    yield (*field, _SECONDS), durations.total
