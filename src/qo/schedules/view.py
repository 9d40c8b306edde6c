"""A schedule as people see it: its status, its next fire times and its last results."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from qo.schedules.decision import decided_until, is_active
from qo.schedules.fire_times import next_fires
from qo.schedules.schedule import Outcome, Schedule, ScheduleNote

ScheduleStatus: TypeAlias = Literal["active", "paused", "inactive", "ended"]
NEXT_FIRES = 5


class FireView(Struct, frozen=True, kw_only=True):
    """One fire time in the past."""

    at: float
    outcome: Outcome
    decided_at: float
    task_id: str | None = None
    task_status: str | None = None  # None if no task was submitted, or it has been deleted
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


def view_of(note: ScheduleNote, now: float, statuses: Mapping[str, str]) -> ScheduleInfo:
    """`statuses` are those of the tasks of recent fires, by id."""
    upcoming = tuple(next_fires(note.schedule, max(now, decided_until(note, now)), NEXT_FIRES))
    if not is_active(note, now):
        status: ScheduleStatus = "inactive"
    elif note.paused:
        status = "paused"
    else:
        status = "active" if upcoming else "ended"
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
        next_fires=upcoming if status == "active" else (),
        recent=recent,
    )
