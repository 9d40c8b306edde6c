"""Schedules in the store: one note each, changed by compare-and-set."""

from collections.abc import Callable

from qo import notes
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote, InvalidTask, StorageError
from qo.model import NEW, SCHEDULE_NOTES, Note, check_name
from qo.schedules.schedule import ScheduleNote, check_schedule

SCHEDULES = SCHEDULE_NOTES
MAX_SCHEDULES = 10_000  # in one store
_MAX_ATTEMPTS = 50  # a schedule is changed rarely, so this many lost races mean that something is broken


class LocalChanges:
    """How often this process has changed schedules, of any store.

    Schedulers of the process then read them immediately.
    """

    def __init__(self) -> None:
        self.number = 0


local_changes = LocalChanges()


def decode_schedule(note: Note) -> ScheduleNote:
    """Raises DamagedNote for a note that is not a valid schedule."""
    stored = notes.decode(note, ScheduleNote)
    if note.name != SCHEDULES + stored.schedule.name:
        raise DamagedNote(*note, f"it belongs to schedule {stored.schedule.name!r:.80}")
    try:
        check_schedule(stored.schedule)
    except InvalidTask as error:
        raise DamagedNote(*note, str(error)) from error
    return stored


async def read_schedule(engine: Engine, name: str) -> ScheduleNote | None:
    """The schedule of a name; None if there is none. Raises DamagedNote."""
    note = await engine.read_note(SCHEDULES + check_name("name", name))
    return None if note is None else decode_schedule(note)


async def read_schedules(engine: Engine) -> list[ScheduleNote]:
    """All schedules by name. Notes that cannot be read are skipped and reported once."""
    found = []
    for note in await engine.notes(SCHEDULES):
        try:
            found.append(decode_schedule(note))
        except DamagedNote as error:
            notes.report(error)
    return found


async def change_schedule(
    engine: Engine,
    name: str,
    how: Callable[[ScheduleNote | None], ScheduleNote | None],
    *,
    replaces_damaged: bool = False,
) -> ScheduleNote | None:
    """Replace a schedule by `how(schedule)`, and try again if another process was faster. None writes nothing.

    With `replaces_damaged`, a note that cannot be read is set aside and replaced. Raises DamagedNote otherwise.
    """
    key = SCHEDULES + check_name("name", name)
    for _ in range(_MAX_ATTEMPTS):
        note = await engine.read_note(key)
        over = note
        try:
            before = None if note is None else decode_schedule(note)
        except DamagedNote as error:
            if not replaces_damaged:
                raise
            await notes.set_aside(engine, error)
            before = over = None
        after = how(before)
        if after is None or after == before:
            return after
        try:
            data = notes.encode_over(after, over=over)
            await engine.write_note(key, data, expected=note.version if note else NEW)
        except Conflict:
            continue
        local_changes.number += 1
        return after
    raise StorageError(f"schedule {name!r} is being changed by other processes; try again")
