"""Metrics of schedules: what any process decided about fire times, read from the stored schedules.

A stored schedule keeps its last decisions. The server counts those that are new since its last read, each fire time
once, and starts at zero, as its other counters do. If more than `MAX_RECENT` decisions about one schedule are made
between two reads, the rest is not counted.
"""

from collections import Counter as Numbers
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.schedules.schedule import OUTCOMES, Fire
from qo.schedules.schedule_notes import read_schedules
from qo.schedules.view import STATUSES, status_of
from qo.stats import BOUNDS

_AGE_FACTOR: Final = 20.0  # a read is reused for this many times its duration
_MAX_AGE: Final = 60.0  # seconds


class _FireKey(NamedTuple):
    """Identifies a decision. Its time does not: the clock of the process that decided may be wrong."""

    at: float
    task_id: str


class ScheduleMetrics:
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
        statuses = Numbers(status_of(note, now) for note in stored)
        for status in STATUSES:
            self._schedules.labels(status).set(statuses[status])
        self._known_until = boot_clock() + min(_MAX_AGE, _AGE_FACTOR * (boot_clock() - began))

    def _count(self, fires: list[Fire]) -> None:
        for fire in fires:
            self._fires.labels(fire.outcome).inc(fire.count)
            if fire.outcome == "fired":
                self._lateness.observe(max(0.0, fire.decided_at - fire.at))
