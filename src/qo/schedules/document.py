"""A schedule as a document of the REST API and of `qo schedules --json`: times in ISO 8601."""

from typing import Any, Literal

from msgspec import Struct

from qo.clock import iso
from qo.codec import to_json
from qo.schedules.schedule import CatchUp, Outcome, Overlap
from qo.schedules.view import FireView, ScheduleInfo, ScheduleStatus


class FireDocument(Struct, frozen=True, kw_only=True):
    """One fire time in the past."""

    at: str  # the fire time
    outcome: Outcome
    decided_at: str
    task_id: str | None = None
    task_status: str | None = (
        None  # null if no task was submitted or it was deleted; in a list, only of the last five fires
    )
    reason: str | None = None
    count: int = 1  # fire times that were missed
    by_hand: bool = False


class ScheduleDocument(Struct, frozen=True, kw_only=True):
    """A schedule, its next five fire times and its last results, the newest first."""

    name: str
    status: ScheduleStatus
    source: Literal["code", "api"]
    type: str
    queue: str
    priority: int
    payload: Any
    cron: str | None
    every: float | None  # seconds
    timezone: str
    start_at: str | None
    end_at: str | None
    jitter: float  # seconds
    catch_up: CatchUp
    catch_up_window: float | None  # seconds
    overlap: Overlap
    created_at: str
    next_fires: tuple[str, ...]
    recent: tuple[FireDocument, ...]
    inactive_because: str | None = None  # one sentence, if the schedule is inactive


def document_of(info: ScheduleInfo) -> ScheduleDocument:
    schedule = info.schedule
    return ScheduleDocument(
        name=info.name,
        status=info.status,
        source=info.source,
        type=info.type,
        queue=info.queue,
        priority=schedule.task.priority,
        payload=to_json(schedule.task.payload),
        cron=schedule.cron or None,
        every=schedule.every or None,
        timezone=schedule.timezone,
        start_at=iso(schedule.start_at),
        end_at=iso(schedule.end_at),
        jitter=schedule.jitter,
        catch_up=schedule.catch_up,
        catch_up_window=schedule.catch_up_window,
        overlap=schedule.overlap,
        created_at=iso(info.created_at),
        next_fires=tuple(map(iso, info.next_fires)),
        recent=tuple(map(_fire, info.recent)),
        inactive_because=info.inactive_because,
    )


def _fire(fire: FireView) -> FireDocument:
    return FireDocument(
        at=iso(fire.at),
        outcome=fire.outcome,
        decided_at=iso(fire.decided_at),
        task_id=fire.task_id,
        task_status=fire.task_status,
        reason=fire.reason,
        count=fire.count,
        by_hand=fire.by_hand,
    )
