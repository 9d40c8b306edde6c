"""What was set aside because it cannot be read: for `qo doctor`."""

from contextlib import suppress

from qo.client import Client
from qo.damage import DAMAGED_TASKS, QUARANTINE, note_name
from qo.engines import open_engine
from qo.errors import InvalidTask, StorageError
from qo.findings import Finding
from qo.model import Filter, Status, check_id, cursor

_PAGE, _MOST_PAGES = 500, 20
_MOST_SHOWN = 20


async def damage_finding(url: str) -> Finding:
    """Reads the newest tasks, so that damage which nobody has met yet is met here."""
    async with Client(open_engine(url)) as client:
        for where in (Filter(), Filter(statuses=(Status.PENDING, Status.RUNNING))):
            after = ""
            for _ in range(_MOST_PAGES):
                page = await client.engine.find(where, limit=_PAGE, after=after)
                if not page:
                    break
                after = cursor(page[-1])
        names = [note.name for note in await client.engine.notes(QUARANTINE)]
        tasks = [name.removeprefix(DAMAGED_TASKS) for name in names if name.startswith(DAMAGED_TASKS)]
        damaged = [task_id for task_id in tasks if not await _is_restored(client, task_id)]
    notes = [name.removeprefix(QUARANTINE) for name in names if not name.startswith(DAMAGED_TASKS)]
    if damaged:
        text = (
            f"{len(damaged)} tasks cannot be read and were set aside; restore them from a copy, or remove them with"
            f" `qo delete`: {_shown(damaged)}"
        )
        return Finding("damage", False, text)
    if notes:
        text = f"{len(notes)} notes could not be read; their bytes are kept under {QUARANTINE}: {_shown(notes)}"
        return Finding("damage", None, text)
    return Finding("damage", True, "no task and no note is set aside")


async def _is_restored(client: Client, task_id: str) -> bool:
    try:
        (task,) = await client.engine.get([check_id(task_id)])
    except InvalidTask:  # not even its id could be read
        return False
    if task is None:
        return False
    with suppress(StorageError):  # whoever may only read leaves the note to others
        await client.engine.drop_note(note_name(task_id))  # or the task would count as damaged once it is deleted
    return True


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_MOST_SHOWN]) + (", …" if len(names) > _MOST_SHOWN else "")
