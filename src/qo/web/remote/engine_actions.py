"""The actions in calls of the engine port that the audit trail records: changed tasks, controls and schedules."""

from typing import Any, NamedTuple

from msgspec import structs

from qo import notes, wire
from qo.client import Client
from qo.errors import DamagedNote
from qo.model import Change, Guard, Limit, Note, Status
from qo.model.change import LEASED
from qo.schedules.schedule import ScheduleNote
from qo.schedules.schedule_notes import SCHEDULES, decode_schedule

_VERBS = {
    (Guard.UNFINISHED, Status.CANCELLED): "cancel",
    (Guard.WAITING, Status.CANCELLED): "cancel",
    (Guard.WAITING, Status.PENDING): "retry",
    (Guard.NOT_DUE, Status.PENDING): "run-now",
    (Guard.WAITING, Status.FAILED): "reject",  # a worker fails tasks of a type that no worker handles
    (Guard.REPLAYABLE, Status.PENDING): "replay",
    (Guard.FINISHED, Status.PENDING): "replay",
    (Guard.ENDED, Status.ARCHIVED): "archive",
}


class PortAction(NamedTuple):
    action: str
    task_ids: list[str]  # those that were changed
    number: int | None  # tasks
    target: str = ""


async def controls_before(client: Client, call: str, arguments: Any) -> notes.Controls | None:
    """The controls before a call that may change them; None if the call does not."""
    if (call == "write_note" and arguments.name == notes.CONTROL) or (
        call == "drop_note" and arguments == notes.CONTROL
    ):
        return await _controls(client)
    return None


async def _controls(client: Client) -> notes.Controls:
    try:
        return await client.controls.read()
    except DamagedNote:
        return notes.Controls()


def actions_in(call: str, arguments: Any, answer: Any, before: notes.Controls | None) -> list[PortAction]:
    """The actions of a call. `answer` is None if the outcome is unknown."""
    if call == "delete":
        return _tasks("delete", arguments, answer)
    if call == "apply":
        return _changes(arguments, answer)
    if before is not None:
        after = notes.Controls() if call == "drop_note" else _written(arguments)
        difference = controls_in_words(before, after)
        return [PortAction("controls", [], None, difference)] if difference else []
    return []


def _changes(changes: list[Change], answer: list[bool] | None) -> list[PortAction]:
    found: dict[str, list[int]] = {}
    for at, change in enumerate(changes):
        if change.guard not in LEASED:
            found.setdefault(_verb(change), []).append(at)
    return [
        action
        for verb, places in found.items()
        for action in _tasks(
            verb, [changes[at].id for at in places], None if answer is None else [answer[at] for at in places]
        )
    ]


def _verb(change: Change) -> str:
    if change.priority is not None:
        return "priority"
    if change.run_at is not None:
        return "reschedule"
    return _VERBS.get((change.guard, change.to), f"make {change.to}")


def _tasks(verb: str, ids: list[str], answer: list[bool] | None) -> list[PortAction]:
    if answer is None:
        return [PortAction(verb, ids, None)] if ids else []
    changed = [each for each, done in zip(ids, answer, strict=True) if done]
    return [PortAction(verb, changed, len(changed))] if changed else []


def _written(arguments: wire.WriteNote) -> notes.Controls:
    try:
        return notes.decode(Note(arguments.name, arguments.data, ""), notes.Controls)
    except DamagedNote:
        return notes.Controls()


def controls_in_words(before: notes.Controls, after: notes.Controls) -> str:
    """The differences as text; empty if only a drained worker removed itself."""
    if structs.replace(before, draining=after.draining) == after and after.draining <= before.draining:
        return ""
    return ", ".join(
        f"{name} {_shown(getattr(before, name))} to {_shown(getattr(after, name))}"
        for name in notes.Controls.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    )


def _shown(value: Any) -> str:
    if isinstance(value, frozenset):
        return " ".join(sorted(value)) or "none"
    if isinstance(value, dict):
        return " ".join(f"{name}={_limit_text(limit)}" for name, limit in sorted(value.items())) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _limit_text(limit: float | Limit) -> str:
    if isinstance(limit, Limit):
        return f"{limit.concurrency}/{limit.rate:g} in {limit.per:g} s"
    return f"{limit:g}"


# --- schedules


def schedule_note_in(call: str, message: Any) -> str:
    """The note of a schedule that a call changes; empty if it changes none."""
    name: str = message.name if call == "write_note" else message if call == "drop_note" else ""
    return name if name.startswith(SCHEDULES) else ""


async def schedule_before(client: Client, name: str) -> ScheduleNote | None:
    note = await client.engine.read_note(name)
    return None if note is None else _decoded(note)


def schedule_action(message: wire.WriteNote | str, before: ScheduleNote | None) -> str:
    """The action of a call that writes or drops the note of a schedule; empty if it is none."""
    if isinstance(message, str):
        return "schedule.remove"
    after = _decoded(Note(message.name, message.data, ""))
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
