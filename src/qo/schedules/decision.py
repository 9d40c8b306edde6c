"""Which fire times of a schedule are due, and what happens to each: pure functions over a schedule's note."""

from collections.abc import Collection
from itertools import islice

from msgspec.structs import replace

from qo.schedules.fire_times import fires_between, last_fire, next_fire
from qo.schedules.schedule import Fire, Schedule, ScheduleNote, digest_of, task_id_of

MAX_RECENT = 20  # decisions kept with a schedule
MAX_UNFINISHED = 100  # older decisions kept because their tasks have not finished
MAX_FIRES = 100  # tasks that one decision submits; the next decision continues
ON_TIME = 60.0  # seconds after a fire time in which it does not count as missed
CATCH_UP_WINDOW = 86_400.0  # seconds, for catch_up="all"
STEP_BACK = 60.0  # seconds; if a clock was set back by more, fire times are decided from the present on
ACTIVE_FOR = 86_400.0  # seconds for which a schedule stays active without a worker that declares it
DECLARE_INTERVAL = 600.0  # seconds between two declarations of the same definition
DECLARED_FOR = 1800.0  # seconds after which no live worker declares the definition
_MAX_SUPERSEDED = 8
_MAX_REASON = 300  # characters
_MAX_MISSED = 1000  # fire times counted as missed


def is_active(note: ScheduleNote, now: float) -> bool:
    """Whether the schedule fires unless it is paused. One that was removed from the code does not."""
    if note.source == "api":
        return True
    return not note.removed and now - note.declared_at <= ACTIVE_FOR


def next_fire_of(note: ScheduleNote, now: float) -> float | None:
    """When the schedule fires next; None for never, or while it is paused or inactive."""
    if note.paused or not is_active(note, now):
        return None
    return next_fire(note.schedule, decided_until(note, now))


def decided_until(note: ScheduleNote, now: float) -> float:
    """The time after which fire times are to be decided: the present if the store's clock was set back."""
    return now if note.decided_until > now + STEP_BACK else note.decided_until


def decide(note: ScheduleNote, now: float, unfinished: Collection[str] = ()) -> ScheduleNote:
    """The note with all due fire times decided. `pending` are those to submit. The same note if nothing is due.

    `unfinished` are the ids of the schedule's tasks that have not finished.
    """
    if note.pending or note.paused or not is_active(note, now):
        return note
    since = decided_until(note, now)
    due, until = _due(note.schedule, since, now)
    if not due:
        return note if since == note.decided_until else replace(note, decided_until=since)
    fires = _missed_before(note.schedule, since, due[0], now) + _fires(note.schedule, due, now, unfinished)
    pending = tuple(fire for fire in fires if fire.outcome == "fired")
    return _recorded(replace(note, decided_until=until, pending=pending), fires, unfinished)


def _recorded(note: ScheduleNote, fires: Collection[Fire], unfinished: Collection[str]) -> ScheduleNote:
    """The note with these records and without old ones.

    `overlap` finds the unfinished tasks of a schedule by its records, so old records of unfinished tasks stay. If there
    are too many, those of manual runs go first.
    """
    recent = (*note.recent, *fires)
    older, newest = recent[:-MAX_RECENT], recent[-MAX_RECENT:]
    if note.schedule.overlap == "allow" or not older:
        return replace(note, recent=newest)
    needed = {*unfinished, *(fire.task_id for fire in note.pending)}
    kept = sorted((fire for fire in older if fire.task_id in needed), key=lambda fire: fire.by_hand)[:MAX_UNFINISHED]
    return replace(note, recent=(*sorted(kept, key=lambda fire: fire.at), *newest))


def _due(schedule: Schedule, since: float, now: float) -> tuple[list[float], float]:
    """The fire times to decide one by one, and until when the decision holds."""
    if schedule.catch_up == "all":
        window = CATCH_UP_WINDOW if schedule.catch_up_window is None else schedule.catch_up_window
        due = list(islice(fires_between(schedule, max(since, now - window), now), MAX_FIRES))
        last = last_fire(schedule, since, now) if not due else None
        return ([last], now) if last is not None else (due, due[-1] if len(due) == MAX_FIRES else now)
    last = last_fire(schedule, since, now)
    return ([] if last is None else [last]), now


def _missed_before(schedule: Schedule, since: float, first: float, now: float) -> list[Fire]:
    """One record for all fire times before the first that is decided."""
    missed = list(islice(fires_between(schedule, since, first), _MAX_MISSED))
    missed = [at for at in missed if at < first]
    if not missed:
        return []
    return [Fire(at=missed[-1], outcome="missed", decided_at=now, count=len(missed), reason="no scheduler was running")]


def _fires(schedule: Schedule, due: list[float], now: float, unfinished: Collection[str]) -> list[Fire]:
    fires = []
    running = tuple(sorted(unfinished))
    for at in due:
        id = task_id_of(schedule.name, at)
        if _is_too_late(schedule, at, now):
            fires.append(Fire(at=at, outcome="missed", decided_at=now, reason="it was too late to catch up"))
        elif schedule.overlap == "skip" and running:
            reason = f"task {running[-1]} has not finished"
            fires.append(Fire(at=at, outcome="skipped", decided_at=now, reason=reason))
        elif schedule.overlap == "cancel" and at != due[-1]:
            fires.append(Fire(at=at, outcome="skipped", decided_at=now, reason="a later fire time is due too"))
        else:
            cancels = running if schedule.overlap == "cancel" else ()
            fires.append(Fire(at=at, outcome="fired", decided_at=now, task_id=id, cancels=cancels))
            running = (*running, id)
    return fires


def _is_too_late(schedule: Schedule, at: float, now: float) -> bool:
    if schedule.catch_up == "none":
        return now - at > ON_TIME
    window = schedule.catch_up_window
    if window is None:
        window = CATCH_UP_WINDOW if schedule.catch_up == "all" else float("inf")
    return now - at > max(window, ON_TIME)


def taken_over(note: ScheduleNote, now: float) -> ScheduleNote:
    """The note with which another scheduler takes over the remaining submissions."""
    return replace(note, pending=tuple(replace(fire, decided_at=now) for fire in note.pending))


def delivered(note: ScheduleNote, fires: Collection[Fire]) -> ScheduleNote:
    """The note without these submissions."""
    done = {fire.task_id for fire in fires}
    return replace(note, pending=tuple(fire for fire in note.pending if fire.task_id not in done))


def refused(note: ScheduleNote, fires: Collection[Fire], problem: str) -> ScheduleNote:
    """The note after the store refused the tasks of these fires."""
    bad = {fire.task_id for fire in fires}
    reason = f"the task was refused: {problem}"[:_MAX_REASON]
    recent = tuple(
        replace(fire, outcome="missed", task_id="", reason=reason) if fire.task_id in bad else fire
        for fire in note.recent
    )
    return replace(delivered(note, fires), recent=recent)


def started_by_hand(note: ScheduleNote, task_id: str, now: float, unfinished: Collection[str] = ()) -> ScheduleNote:
    """The note with a manual run, which changes no fire time. `unfinished` is as in `decide`."""
    fire = Fire(at=now, outcome="fired", decided_at=now, task_id=task_id, by_hand=True)
    return _recorded(replace(note, pending=(*note.pending, fire)), [fire], unfinished)


def paused(note: ScheduleNote) -> ScheduleNote:
    return replace(note, paused=True)


def resumed(note: ScheduleNote, now: float) -> ScheduleNote:
    """The note of a resumed schedule. Fire times during the pause are not caught up."""
    return replace(note, paused=False, decided_until=now) if note.paused else note


def created_note(schedule: Schedule, now: float, *, from_code: bool) -> ScheduleNote:
    return ScheduleNote(
        schedule=schedule,
        source="code" if from_code else "api",
        created_at=now,
        decided_until=now,
        declared_at=now if from_code else 0.0,
    )


def defined(note: ScheduleNote, schedule: Schedule, now: float) -> ScheduleNote:
    """The note with another definition. If its timing changed, fire times before the present are not caught up."""
    until = note.decided_until if _timing(schedule) == _timing(note.schedule) else now
    return replace(note, schedule=schedule, decided_until=until)


def declared(
    note: ScheduleNote | None, schedule: Schedule | None, now: float, *, by: str = "", is_declarer_live: bool = True
) -> ScheduleNote | None:
    """The note after the worker `by` declared a schedule or, with None, declared that its code no longer contains it.

    A replaced definition is restored only if the worker that declared its replacement has stopped, or no worker has
    declared the replacement for a while. Otherwise restarting a worker of an older deployment would undo the newer
    deployment.
    """
    if note is None:
        return None if schedule is None else replace(created_note(schedule, now, from_code=True), declared_by=by)
    if note.source == "api":
        return note if schedule is None else replace(_adopted(note, schedule, now), declared_by=by)
    present, wanted = _digest(None if note.removed else note.schedule), _digest(schedule)
    age = now - note.declared_at
    if present == wanted:
        if 0 <= age < DECLARE_INTERVAL and (is_declarer_live or note.declared_by == by):
            return note
        return replace(note, declared_at=now, declared_by=by)
    is_newer = wanted in note.superseded and note.declared_by != by
    if is_newer and 0 <= age < DECLARED_FOR and is_declarer_live:
        return note
    earlier = (present, *(digest for digest in note.superseded if digest not in (present, wanted)))
    changed = note if schedule is None else defined(note, schedule, now)
    if note.removed:
        changed = replace(changed, decided_until=now)
    superseded = earlier[:_MAX_SUPERSEDED]
    return replace(changed, removed=schedule is None, declared_at=now, declared_by=by, superseded=superseded)


def _adopted(note: ScheduleNote, schedule: Schedule, now: float) -> ScheduleNote:
    """A schedule that was added at run time and is now in the code. From now on the code defines it."""
    return replace(defined(note, schedule, now), source="code", declared_at=now)


def _digest(schedule: Schedule | None) -> str:
    return "removed" if schedule is None else digest_of(schedule)


def _timing(schedule: Schedule) -> tuple[object, ...]:
    return schedule.cron, schedule.every, schedule.timezone, schedule.start_at, schedule.end_at
