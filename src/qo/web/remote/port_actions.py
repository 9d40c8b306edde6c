"""Which calls of the engine port are recorded in the audit trail.

Native workers and monitors use the port for claims, settlements, renewals, expiries, registrations and statistics.
These are not recorded. Cancelling, replaying, archiving and deleting tasks are, and so are changes of the controls.
"""

from typing import Any, NamedTuple

from msgspec import structs

from qo import notes, wire
from qo.client import Client
from qo.errors import DamagedNote
from qo.model import Change, Guard, Note, Status
from qo.model.change import LEASED

_VERBS = {
    (Guard.UNFINISHED, Status.CANCELLED): "cancel",
    (Guard.WAITING, Status.CANCELLED): "cancel",
    (Guard.WAITING, Status.PENDING): "retry",
    (Guard.WAITING, Status.FAILED): "reject",  # a worker fails tasks of a type that no worker handles
    (Guard.REPLAYABLE, Status.PENDING): "replay",
    (Guard.ENDED, Status.ARCHIVED): "archive",
}


class PortAction(NamedTuple):
    action: str
    task_ids: list[str]  # those that were changed
    number: int | None  # tasks
    target: str = ""


async def controls_before(client: Client, call: str, asked: Any) -> notes.Controls | None:
    """The controls before a call that may change them; None if the call does not."""
    if (call == "write_note" and asked.name == notes.CONTROL) or (call == "drop_note" and asked == notes.CONTROL):
        return await _controls(client)
    return None


async def _controls(client: Client) -> notes.Controls:
    try:
        return await client.controls.read()
    except DamagedNote:
        return notes.Controls()


def actions_in(call: str, asked: Any, answer: Any, before: notes.Controls | None) -> list[PortAction]:
    """The actions of a call. `answer` is None if the outcome is unknown."""
    if call == "delete":
        return _tasks("delete", asked, answer)
    if call == "apply":
        return _changes(asked, answer)
    if before is not None:
        after = notes.Controls() if call == "drop_note" else _written(asked)
        difference = controls_in_words(before, after)
        return [PortAction("controls", [], None, difference)] if difference else []
    return []


def _changes(changes: list[Change], answer: list[bool] | None) -> list[PortAction]:
    found: dict[str, list[int]] = {}
    for at, change in enumerate(changes):
        if change.guard not in LEASED:
            found.setdefault(_VERBS.get((change.guard, change.to), f"make {change.to}"), []).append(at)
    return [
        action
        for verb, places in found.items()
        for action in _tasks(
            verb, [changes[at].id for at in places], None if answer is None else [answer[at] for at in places]
        )
    ]


def _tasks(verb: str, ids: list[str], answer: list[bool] | None) -> list[PortAction]:
    if answer is None:
        return [PortAction(verb, ids, None)] if ids else []
    changed = [each for each, done in zip(ids, answer, strict=True) if done]
    return [PortAction(verb, changed, len(changed))] if changed else []


def _written(asked: wire.WriteNote) -> notes.Controls:
    try:
        return notes.decode(Note(asked.name, asked.data, ""), notes.Controls)
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
        return " ".join(f"{name}={rate:g}" for name, rate in sorted(value.items())) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
