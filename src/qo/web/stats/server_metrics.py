"""The Prometheus metrics of a server: gauges for the state of the store, counters for what any process settled.

A counter must not decrease while its process runs, but the store deletes old statistics. The server therefore adds the
growth between two reads. It starts at zero, so that a restart does not count old work again.
"""

import asyncio
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from litestar.datastructures import State
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from qo.client import Client
from qo.clock import Clock, boot_clock, system_clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.handled_types import read_consumers, unhandled_lanes
from qo.model import Status
from qo.notes import DEAD_AFTER, WorkerNote, is_dead
from qo.schedules.schedule import OUTCOMES, Fire
from qo.schedules.schedule_notes import read_schedules
from qo.schedules.view import STATUSES, status_of
from qo.stats import BOUNDS, MINUTE, OTHER_TYPES, Durations, Interval, StatsRow
from qo.stats.rows import MAX_TYPES, RowKey
from qo.transitions import REASONS
from qo.web.stats.sampler import PendingKinds, Sample, Sampler
from qo.web.stats.throughput import RecentStats
from qo.web.stats.wait_times import PERCENTILES, Ages, wait_percentiles

_SCHEDULES_AGE_FACTOR: Final = 20.0  # a read is reused for this many times its duration
_SCHEDULES_MAX_AGE: Final = 60.0  # seconds
LEVELS: Final = ("high", "medium", "low")
ENDED: Final = (Status.COMPLETED.value, Status.FAILED.value)
_REMEMBERED = 2 * 3600  # seconds; longer than a minute is read
_SECONDS = -1  # the key of a histogram's sum, among the numbers of its buckets
Field = tuple[str | int, ...]
Numbers = dict[Field, float]


class _FireKey(NamedTuple):
    """Identifies a decision. Its time does not: the clock of the process that decided may be wrong."""

    at: float
    task_id: str


class ScheduleMetrics:
    """What any process decided about fire times, read from the stored schedules.

    A stored schedule keeps its last decisions. The server counts those that are new since its last read, each fire time
    once, and starts at zero, as its other counters do. If more than `MAX_RECENT` decisions about one schedule are made
    between two reads, the rest is not counted.
    """

    def __init__(self, engine: Engine, clock: Clock, registry: CollectorRegistry) -> None:
        self._engine, self._clock = engine, clock
        self._fires = Counter(
            "schedule_fires_total", "Fire times of schedules that were decided.", ["outcome"], registry=registry
        )
        self._lateness = Histogram(
            "schedule_lateness_seconds",
            "Time from a fire time to the decision to submit its task.",
            registry=registry,
            buckets=BOUNDS,
        )
        self._schedules = Gauge("schedules", "Schedules by status.", ["status"], registry=registry)
        for outcome in OUTCOMES:
            self._fires.labels(outcome)
        self._known: dict[str, frozenset[_FireKey]] | None = None  # by schedule; None before the first read
        self._known_until = float("-inf")

    async def refresh(self) -> None:
        """Count what was decided since the last read. Raises StorageError."""
        began = boot_clock()
        if began < self._known_until:
            return
        stored, now = await read_schedules(self._engine), self._clock()
        known, before = dict[str, frozenset[_FireKey]](), self._known
        for note in stored:
            fires = {_FireKey(fire.at, fire.task_id): fire for fire in note.recent if not fire.by_hand}
            known[note.schedule.name] = frozenset(fires)
            if before is not None:
                counted = before.get(note.schedule.name, frozenset())
                self._count([fire for key, fire in fires.items() if key not in counted])
        self._known = known
        statuses = Tally(status_of(note, now) for note in stored)
        for status in STATUSES:
            self._schedules.labels(status).set(statuses[status])
        self._known_until = boot_clock() + min(_SCHEDULES_MAX_AGE, _SCHEDULES_AGE_FACTOR * (boot_clock() - began))

    def _count(self, fires: list[Fire]) -> None:
        for fire in fires:
            self._fires.labels(fire.outcome).inc(fire.count)
            if fire.outcome == "fired":
                self._lateness.observe(max(0.0, fire.decided_at - fire.at))


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


_MAX_AGE: Final = 1.0  # seconds for which one read of the store serves all scrapes
WORKER_STATUSES: Final = ("active", "draining", "dead")


class ServerMetrics:
    def __init__(
        self,
        client: Client,
        sampler: Sampler,
        recent: RecentStats,
        clock: Clock,
        *,
        dead_after: float = DEAD_AFTER,
        kinds: PendingKinds | None = None,
    ) -> None:
        self._client, self._sampler, self._recent, self._clock = client, sampler, recent, clock
        self._kinds = kinds or PendingKinds(client.engine, clock)
        self._dead_after = dead_after
        self.registry = registry = CollectorRegistry()
        self._counters = StoreCounters()
        registry.register(self._counters)
        self._silent = Counter(
            "worker_heartbeat_failures_total",
            "Workers whose heartbeat stopped while this server ran.",
            registry=registry,
        )
        self._depth = Gauge("queue_depth", "Pending tasks.", ["priority"], registry=registry)
        self._age = Gauge(
            "queue_age_seconds", "How long pending tasks have waited.", ["priority", "percentile"], registry=registry
        )
        self._states = Gauge("task_state_total", "Tasks by status.", ["status"], registry=registry)
        self._pending = Gauge("tasks_pending", "Pending tasks by kind.", ["kind"], registry=registry)
        self._unhandled = Gauge("tasks_unhandled", "Pending tasks that no worker handles.", registry=registry)
        self._workers = Gauge("workers_total", "Workers by status.", ["status"], registry=registry)
        self._used = Gauge("worker_capacity_used_ratio", "Leased tasks as a share of the capacity.", registry=registry)
        self._schedules = ScheduleMetrics(client.engine, clock, registry)
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._dead: set[str] | None = None  # None before the first read

    async def start(self) -> None:
        """Read what was counted before this server started. The counters start at zero after it."""
        with suppress(StorageError):  # the first scrape does it then
            self._counters.update(await self._recent.minutes())
            await self._schedules.refresh()

    async def refresh(self) -> None:
        async with self._reading:
            if boot_clock() - self._read_at < _MAX_AGE:
                return
            sample = await self._sampler.sample(max_age=_MAX_AGE)
            now = self._clock()
            oldest = [since for since in sample.waiting.oldest.values() if since is not None]
            ages = await wait_percentiles(self._client.engine, oldest, now)
            workers = await self._client.workers()
            self._counters.update(await self._recent.minutes())
            self._show_tasks(sample, ages)
            self._show_workers(workers, now)
            consumers = await read_consumers(self._client.engine)
            unhandled = unhandled_lanes(sample.counts, workers, now, consumers=consumers, dead_after=self._dead_after)
            self._unhandled.set(sum(unhandled.values()))
            for kind, number in (await self._kinds.total(sample.counts)).items():
                self._pending.labels(kind.value).set(number)
            await self._schedules.refresh()
            self._read_at = boot_clock()

    def _show_tasks(self, sample: Sample, ages: Ages) -> None:
        for level in LEVELS:
            self._depth.labels(level).set(sample.waiting.depth.get(level, 0))
            for percentile in PERCENTILES:
                self._age.labels(level, percentile).set(ages[level][percentile])
        for status in Status:
            self._states.labels(status.value).set(sample.total(status))

    def _show_workers(self, workers: list[WorkerNote], now: float) -> None:
        dead = {each.worker_id for each in workers if is_dead(each, now, self._dead_after)}
        alive = [each for each in workers if each.worker_id not in dead]
        numbers = dict.fromkeys(WORKER_STATUSES, 0) | {"dead": len(dead)}
        for worker in alive:
            numbers[worker.status] = numbers.get(worker.status, 0) + 1
        for status in WORKER_STATUSES:
            self._workers.labels(status).set(numbers[status])
        capacity = sum(worker.capacity for worker in alive)
        used = sum(min(worker.current_load, worker.capacity) for worker in alive)
        self._used.set(used / capacity if capacity else 0.0)
        if self._dead is not None:
            self._silent.inc(len(dead - self._dead))
        self._dead = dead


def metrics_of(state: State) -> ServerMetrics:
    """The metrics of the application, created on first use."""
    metrics: ServerMetrics | None = state.get("metrics")
    if metrics is None:
        client, clock = state["client"], state.get("clock") or system_clock
        sampler = state.get("sampler") or Sampler(client.engine, interval=_MAX_AGE, clock=clock)
        recent = state.get("recent_stats") or RecentStats(client, clock)
        metrics = state["metrics"] = ServerMetrics(client, sampler, recent, clock)
    return metrics
