"""Which calls of the engine port are actions on schedules. Fires of schedulers and declarations of workers are none."""

from typing import Any

from qo import wire
from qo.client import Client
from qo.errors import DamagedNote
from qo.model import Note
from qo.schedules.schedule import ScheduleNote
from qo.schedules.schedule_notes import SCHEDULES, decode_schedule


def name_in(call: str, asked: Any) -> str:
    """The note of a schedule that a call changes; empty if it changes none."""
    name: str = asked.name if call == "write_note" else asked if call == "drop_note" else ""
    return name if name.startswith(SCHEDULES) else ""


async def schedule_before(client: Client, name: str) -> ScheduleNote | None:
    note = await client.engine.read_note(name)
    return None if note is None else _decoded(note)


def action_on(asked: wire.WriteNote | str, before: ScheduleNote | None) -> str:
    """The action of a call that writes or drops the note of a schedule; empty if it is none."""
    if isinstance(asked, str):
        return "schedule.remove"
    after = _decoded(Note(asked.name, asked.data, ""))
    if after is None:
        return "schedule.add"  # of something unreadable
    if before is None or before.schedule != after.schedule:
        return "schedule.add" if after.source == "api" else ""
    if before.paused != after.paused:
        return "schedule.pause" if after.paused else "schedule.resume"
    by_hand = any(fire.by_hand and fire not in before.recent for fire in after.recent)
    return "schedule.run" if by_hand else ""


def _decoded(note: Note) -> ScheduleNote | None:
    try:
        return decode_schedule(note)
    except DamagedNote:
        return None
