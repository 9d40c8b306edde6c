"""A schedule as immutable data: what it submits and when, and the record of its fire times."""

import hashlib
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from qo.errors import InvalidTask
from qo.model import NewTask, check_described, check_name, check_number, check_size, derived_id, show
from qo.model.ranking import STRICT
from qo.model.task import LATEST, LONGEST
from qo.model.text import unknown_options
from qo.notes import Instant
from qo.schedules.fire_times import check_cron, check_timezone

CatchUp: TypeAlias = Literal["none", "last", "all"]
Overlap: TypeAlias = Literal["allow", "skip", "cancel"]
Outcome: TypeAlias = Literal["fired", "skipped", "missed"]

CATCH_UPS: tuple[CatchUp, ...] = ("none", "last", "all")
OVERLAPS: tuple[Overlap, ...] = ("allow", "skip", "cancel")
OUTCOMES: tuple[Outcome, ...] = ("fired", "skipped", "missed")
MAX_PAYLOAD = 64 * 1024  # bytes of a schedule's arguments
_MAX_OVERHEAD = 1024  # bytes that encryption adds
MIN_INTERVAL = 1.0  # seconds
NO_ID = "00000000-0000-8000-8000-000000000000"  # of the task in a schedule; each fire time has its own
_Duration: TypeAlias = Annotated[float, Meta(ge=0, le=3.2e9)]


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule submits, and when."""

    name: str
    task: NewTask  # the submitted tasks differ from it only in `id` and `run_at`
    cron: str = ""  # either this
    every: _Duration = 0.0  # or this, in seconds
    timezone: str = "UTC"  # of the cron expression
    start_at: Instant | None = None
    end_at: Instant | None = None
    jitter: _Duration = 0.0  # seconds; each task is due up to this much after its fire time
    catch_up: CatchUp = "last"
    catch_up_window: _Duration | None = None  # seconds; None is a day for "all", and no limit for "last"
    overlap: Overlap = "allow"


class Fire(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was decided about one fire time, or about several that were missed."""

    at: Instant  # the fire time; of several missed ones the last
    outcome: Outcome
    decided_at: Instant
    task_id: str = ""
    reason: str = ""
    count: int = 1
    by_hand: bool = False
    cancels: tuple[str, ...] = ()  # ids of unfinished tasks to cancel first


class ScheduleNote(Struct, frozen=True, kw_only=True):
    """A schedule as stored, in the note `schedules/<name>`."""

    schedule: Schedule
    source: Literal["code", "api"] = "api"
    paused: bool = False
    created_at: Instant
    decided_until: Instant  # all fire times up to this time have been decided
    pending: tuple[Fire, ...] = ()  # decided, and not known to be submitted
    recent: tuple[Fire, ...] = ()  # the newest last
    removed: bool = False  # from the code
    declared_at: Instant = 0.0  # when a worker last declared the present definition
    declared_by: str = ""  # the id of that worker
    superseded: tuple[str, ...] = ()  # digests of earlier definitions in code, the newest first


def make_schedule(name: str, task: NewTask, **options: Any) -> Schedule:
    """A checked schedule. Options that are None have their defaults."""
    # Each fire time is a separate task, so the task has no key. JSON has no infinity; these numbers mean the same.
    plain = msgspec.structs.replace(
        task,
        id=NO_ID,
        next_id=None,
        idempotency_key=None,
        until_started=False,
        on_duplicate=None,
        run_at=None,
        delay=0.0,
        ageing=min(task.ageing, STRICT),
        window=min(task.window, LONGEST),
    )
    check_size("payload", task.payload, MAX_PAYLOAD)
    if unknown := unknown_options(options, set(Schedule.__struct_fields__) - {"name", "task"}):
        raise InvalidTask("schedule", unknown)
    given = {option: value for option, value in options.items() if value is not None}
    return check_schedule(Schedule(name=name, task=plain, **given))


def check_schedule(schedule: Schedule) -> Schedule:
    """The schedule with its cron expression in plain form. Raises InvalidTask, which names the option."""
    check_name("name", schedule.name)
    check_described(schedule.task, payload_limit=MAX_PAYLOAD + _MAX_OVERHEAD)
    if bool(schedule.cron) == bool(schedule.every):
        raise InvalidTask("cron", "pass a cron expression, or every=, and not both")
    if schedule.every:
        check_number("every", schedule.every)
        if schedule.every < MIN_INTERVAL:
            raise InvalidTask("every", f"{show(schedule.every)} must be at least {MIN_INTERVAL:g} second")
    check_timezone(schedule.timezone)
    for field in ("start_at", "end_at"):
        if (value := getattr(schedule, field)) is not None:
            check_number(field, value, maximum=LATEST)
    if schedule.start_at is not None and schedule.end_at is not None and schedule.end_at < schedule.start_at:
        raise InvalidTask("end_at", "must not be before start_at")
    check_number("jitter", schedule.jitter)
    if schedule.catch_up_window is not None:
        check_number("catch_up_window", schedule.catch_up_window, above=0.0)
    if schedule.catch_up not in CATCH_UPS:
        raise InvalidTask("catch_up", f"{show(schedule.catch_up)} is not one of: {', '.join(CATCH_UPS)}")
    if schedule.overlap not in OVERLAPS:
        raise InvalidTask("overlap", f"{show(schedule.overlap)} is not one of: {', '.join(OVERLAPS)}")
    return msgspec.structs.replace(schedule, cron=check_cron(schedule.cron)) if schedule.cron else schedule


def digest_of(schedule: Schedule) -> str:
    """A short text that is equal for equal schedules."""
    return hashlib.sha256(msgspec.json.encode(schedule)).hexdigest()[:16]


def task_id_of(name: str, fire_at: float) -> str:
    """The id of the task for a fire time. No queue has an empty name, so it differs from the ids of all keys."""
    return derived_id("", name, str(round(fire_at * 1000)))


def task_of(schedule: Schedule, fire: Fire) -> NewTask:
    """The task to submit for a fire time."""
    jitter = schedule.jitter * _fraction(fire.task_id) if not fire.by_hand else 0.0
    due_at = min(fire.at + jitter, LATEST)  # a store refuses later times
    return msgspec.structs.replace(schedule.task, id=fire.task_id, run_at=due_at, delay=0.0)


def _fraction(task_id: str) -> float:
    """A number from 0 to 1 that is the same in every process, because the id is."""
    return int(task_id[24:], 16) / 16**12
