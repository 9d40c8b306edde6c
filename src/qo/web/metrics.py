"""`/metrics` of the server: the state of the store, looked at when asked, and what any process has settled there."""

import asyncio
from contextlib import suppress
from typing import Any, Final

from litestar import Request, Response, Router, get
from litestar.datastructures import State
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from qo.client import Client
from qo.clock import Clock, boot_clock, system_clock
from qo.errors import StorageError
from qo.model import Status
from qo.notes import DEAD_AFTER, WorkerNote, is_dead, unhandled_lanes
from qo.web.access import READ
from qo.web.stats.recent_stats import RecentStats
from qo.web.stats.sampler import Sample, Sampler
from qo.web.stats.store_counters import LEVELS, StoreCounters
from qo.web.stats.wait_times import PERCENTILES, Ages, look

FRESH: Final = 1.0  # seconds one look serves everyone who asks
WORKER_STATUSES: Final = ("active", "draining", "dead")


class ServerMetrics:
    """What is, and what happened: the first as gauges, the second as counters."""

    def __init__(
        self,
        queue: Client,
        sampler: Sampler,
        recent: RecentStats,
        clock: Clock,
        *,
        dead_after: float = DEAD_AFTER,
    ) -> None:
        self._queue, self._sampler, self._recent, self._clock = queue, sampler, recent, clock
        self._dead_after = dead_after
        self.registry = registry = CollectorRegistry()
        self._counters = StoreCounters()
        registry.register(self._counters)
        self._silent = Counter(
            "worker_heartbeat_failures_total", "Workers that went silent while this server watched.", registry=registry
        )
        self._depth = Gauge("queue_depth", "Tasks waiting.", ["priority"], registry=registry)
        self._age = Gauge(
            "queue_age_seconds", "How long waiting tasks have waited.", ["priority", "percentile"], registry=registry
        )
        self._states = Gauge("task_state_total", "Tasks by status.", ["status"], registry=registry)
        self._unhandled = Gauge("tasks_unhandled", "Tasks waiting that no worker handles.", registry=registry)
        self._workers = Gauge("workers_total", "Workers by status.", ["status"], registry=registry)
        self._used = Gauge("worker_capacity_used_ratio", "Tasks held, as a share of capacity.", registry=registry)
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._dead: set[str] | None = None  # known to be dead; None before the first look

    async def start(self) -> None:
        """Remember what was done before this server started: it is not counted."""
        with suppress(StorageError):  # then the first scrape does it
            self._counters.update(await self._recent.minutes())

    async def refresh(self) -> None:
        async with self._looking:
            if boot_clock() - self._looked_at < FRESH:
                return
            sample = await self._sampler.fresh(FRESH)
            now = self._clock()
            oldest = [since for since in sample.waiting.oldest.values() if since is not None]
            ages = await look(self._queue.engine, oldest, now)
            workers = await self._queue.workers()
            self._counters.update(await self._recent.minutes())
            self._show_tasks(sample, ages)
            self._show_workers(workers, now)
            unhandled = unhandled_lanes(sample.counts, workers, now, dead_after=self._dead_after)
            self._unhandled.set(sum(unhandled.values()))
            self._looked_at = boot_clock()

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
    """The application's own."""
    metrics: ServerMetrics | None = state.get("metrics")
    if metrics is None:
        queue, clock = state["queue"], state.get("clock") or system_clock
        sampler = state.get("sampler") or Sampler(queue.engine, interval=FRESH, clock=clock)
        recent = state.get("recent_stats") or RecentStats(queue, clock)
        metrics = state["metrics"] = ServerMetrics(queue, sampler, recent, clock)
    return metrics


@get("/metrics", opt=READ, media_type="text/plain")
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """For Prometheus. A store that is away is a failed scrape."""
    shown = metrics_of(request.app.state)
    await shown.refresh()
    return Response(generate_latest(shown.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


router = Router(path="/", route_handlers=[metrics], tags=["health"])
