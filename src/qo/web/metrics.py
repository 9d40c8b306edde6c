"""`/metrics` of the server: the state of the store, looked at when asked, and what was settled through this server."""

import asyncio
from typing import Any, Final

from litestar import Request, Response, Router, get
from litestar.datastructures import State
from prometheus_client import Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from qo.clock import Clock, boot_clock, system_clock
from qo.metrics import LEVELS, Meters
from qo.model import Status
from qo.notes import WorkerNote
from qo.queue import Queue
from qo.web.access import READ
from qo.web.ages import PERCENTILES, Ages, look
from qo.web.sampler import Sample, Sampler

FRESH: Final = 1.0  # seconds one look serves everyone who asks
DEAD_AFTER: Final = 90.0  # seconds of silence: three missed heartbeats
WORKER_STATUSES: Final = ("active", "draining", "dead")


class Gauges:
    """What is, rather than what happened."""

    def __init__(self, queue: Queue, sampler: Sampler, meters: Meters, clock: Clock) -> None:
        self._queue, self._sampler, self._meters, self._clock = queue, sampler, meters, clock
        registry = meters.registry
        self._depth = Gauge("queue_depth", "Tasks waiting.", ["priority"], registry=registry)
        self._age = Gauge(
            "queue_age_seconds", "How long waiting tasks have waited.", ["priority", "percentile"], registry=registry
        )
        self._states = Gauge("task_state_total", "Tasks by status.", ["status"], registry=registry)
        self._workers = Gauge("workers_total", "Workers by status.", ["status"], registry=registry)
        self._used = Gauge("worker_capacity_used_ratio", "Tasks held, as a share of capacity.", registry=registry)
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._dead: set[str] | None = None  # known to be dead; None before the first look

    async def refresh(self) -> None:
        async with self._looking:
            if boot_clock() - self._looked_at < FRESH:
                return
            sample = await self._sampler.fresh(FRESH)
            now = self._clock()
            oldest = [since for since in sample.waiting.oldest.values() if since is not None]
            ages = await look(self._queue.engine, oldest, now)
            workers = await self._queue.workers()
            self._show_tasks(sample, ages)
            self._show_workers(workers, now)
            self._looked_at = boot_clock()

    def _show_tasks(self, sample: Sample, ages: Ages) -> None:
        for level in LEVELS:
            self._depth.labels(level).set(sample.waiting.depth.get(level, 0))
            for percentile in PERCENTILES:
                self._age.labels(level, percentile).set(ages[level][percentile])
        for status in Status:
            self._states.labels(status.value).set(sample.total(status))

    def _show_workers(self, workers: list[WorkerNote], now: float) -> None:
        dead = {each.worker_id for each in workers if each.status == "dead" or now - each.last_heartbeat > DEAD_AFTER}
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
            self._meters.silent.inc(len(dead - self._dead))
        self._dead = dead


def meters_of(state: State) -> Meters:
    """The application's own."""
    meters: Meters | None = state.get("meters")
    if meters is None:
        meters = state["meters"] = Meters(clock=state.get("clock") or system_clock)
    return meters


def gauges_of(state: State) -> Gauges:
    gauges: Gauges | None = state.get("gauges")
    if gauges is None:
        queue, clock = state["queue"], state.get("clock") or system_clock
        sampler = state.get("sampler") or Sampler(queue.engine, interval=FRESH, clock=clock)
        gauges = state["gauges"] = Gauges(queue, sampler, meters_of(state), clock)
    return gauges


@get("/metrics", opt=READ, media_type="text/plain")
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """For Prometheus. A store that is away is a failed scrape."""
    state = request.app.state
    await gauges_of(state).refresh()
    return Response(generate_latest(meters_of(state).registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


router = Router(path="/", route_handlers=[metrics], tags=["health"])
