"""The Prometheus metrics of a server: gauges for the state of the store, counters for what any process settled."""

import asyncio
from contextlib import suppress
from typing import Final

from litestar.datastructures import State
from prometheus_client import CollectorRegistry, Counter, Gauge

from qo.client import Client
from qo.clock import Clock, boot_clock, system_clock
from qo.errors import StorageError
from qo.handled_types import read_consumers, unhandled_lanes
from qo.model import Status
from qo.notes import DEAD_AFTER, WorkerNote, is_dead
from qo.web.stats.counters import LEVELS, StoreCounters
from qo.web.stats.sampler import Sample, Sampler
from qo.web.stats.throughput import RecentStats
from qo.web.stats.wait_times import PERCENTILES, Ages, wait_percentiles

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
    ) -> None:
        self._client, self._sampler, self._recent, self._clock = client, sampler, recent, clock
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
        self._unhandled = Gauge("tasks_unhandled", "Pending tasks that no worker handles.", registry=registry)
        self._workers = Gauge("workers_total", "Workers by status.", ["status"], registry=registry)
        self._used = Gauge("worker_capacity_used_ratio", "Leased tasks as a share of the capacity.", registry=registry)
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._dead: set[str] | None = None  # None before the first read

    async def start(self) -> None:
        """Read what was counted before this server started. The counters start at zero after it."""
        with suppress(StorageError):  # the first scrape does it then
            self._counters.update(await self._recent.minutes())

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
