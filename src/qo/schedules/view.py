"""A schedule as it is shown to users: its status, its next fire times and its last results."""

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from qo.schedules.decision import decided_until, is_active
from qo.schedules.fire_times import next_fires
from qo.schedules.schedule import Outcome, Schedule, ScheduleNote

ScheduleStatus: TypeAlias = Literal["active", "paused", "inactive", "ended"]
STATUSES: tuple[ScheduleStatus, ...] = get_args(ScheduleStatus)
NEXT_FIRES = 5
LAST_RESULTS = 5  # whose tasks' statuses a list of schedules shows


class FireView(Struct, frozen=True, kw_only=True):
    """One fire time in the past."""

    at: float
    outcome: Outcome
    decided_at: float
    task_id: str | None = None
    task_status: str | None = (
        None  # None if no task was submitted or it was deleted; in a list, only of the last five fires
    )
    reason: str | None = None
    count: int = 1  # fire times that were missed
    by_hand: bool = False


class ScheduleInfo(Struct, frozen=True, kw_only=True):
    """A schedule with its status, its next five fire times and its last results, the newest first."""

    schedule: Schedule
    source: Literal["code", "api"]
    status: ScheduleStatus
    created_at: float
    next_fires: tuple[float, ...]
    recent: tuple[FireView, ...]
    inactive_because: str | None = None  # one sentence, if the schedule is inactive

    @property
    def name(self) -> str:
        return self.schedule.name

    @property
    def type(self) -> str:
        return self.schedule.task.type

    @property
    def queue(self) -> str:
        return self.schedule.task.queue

    @property
    def timing(self) -> str:
        """The cron expression with its zone, or the interval in seconds."""
        if self.schedule.every:
            return f"every {self.schedule.every:g} s"
        return f"{self.schedule.cron} {self.schedule.timezone}"


def status_of(note: ScheduleNote, now: float) -> ScheduleStatus:
    if not is_active(note, now):
        return "inactive"
    if note.paused:
        return "paused"
    return "active" if next_fires(note.schedule, max(now, decided_until(note, now)), 1) else "ended"


def _inactive_because(note: ScheduleNote) -> str:
    if not note.removed:
        return "no worker has declared it for a day"
    worker = f"worker {note.declared_by}" if note.declared_by else "a worker"
    return f"{worker} handles {note.schedule.task.type}, and its code does not have this schedule"


def view_of(note: ScheduleNote, now: float, statuses: Mapping[str, str]) -> ScheduleInfo:
    """`statuses` has the status of each recently fired task, by id."""
    status = status_of(note, now)
    since = max(now, decided_until(note, now))
    recent = tuple(
        FireView(
            at=fire.at,
            outcome=fire.outcome,
            decided_at=fire.decided_at,
            task_id=fire.task_id or None,
            task_status=statuses.get(fire.task_id),
            reason=fire.reason or None,
            count=fire.count,
            by_hand=fire.by_hand,
        )
        for fire in reversed(note.recent)
    )
    return ScheduleInfo(
        schedule=note.schedule,
        source=note.source,
        status=status,
        created_at=note.created_at,
        next_fires=tuple(next_fires(note.schedule, since, NEXT_FIRES)) if status == "active" else (),
        recent=recent,
        inactive_because=_inactive_because(note) if status == "inactive" else None,
    )
