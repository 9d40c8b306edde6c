"""The documents qo keeps as notes: what workers obey, who works here, what types are known, who leads."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from qo.engine import Engine
from qo.errors import Conflict, StorageError
from qo.model import NEW

CONTROL = "control"
KNOWN_TYPES = "types"
LEADER = "monitor"
WORKERS = "workers/"

_TRIES = 50  # a note is written seldom: so many lost races in a row mean something is broken


class Control(Struct, frozen=True, kw_only=True):
    """What every worker obeys while it runs."""

    paused: bool = False
    paused_queues: frozenset[str] = frozenset()
    paused_types: frozenset[str] = frozenset()
    rate_limit: float = 0.0  # tasks a second started by one worker; 0 is no limit
    rate_limits: dict[str, float] = {}  # the same by type, instead of what the code says
    draining: frozenset[str] = frozenset()  # ids of workers that are to finish what they run and leave


class WorkerNote(Struct, frozen=True, kw_only=True):
    """A worker's registration, rewritten with every heartbeat."""

    worker_id: str
    status: str = "active"  # or draining, dead
    started_at: float
    last_heartbeat: float
    queues: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    capacity: int
    current_load: int = 0
    current_tasks: tuple[str, ...] = ()
    tasks_completed: int = 0
    tasks_failed: int = 0
    host: str = ""
    pid: int = 0
    version: str = ""


class KnownTypes(Struct, frozen=True, kw_only=True):
    """Every type a worker has ever registered here. A type outside it is a spelling mistake, or comes too early."""

    types: frozenset[str] = frozenset()


class Leader(Struct, frozen=True, kw_only=True):
    """Which monitor does the work until when."""

    holder: str = ""
    until: float = 0.0


Document = TypeVar("Document", bound=Struct)


async def read(engine: Engine, name: str, kind: type[Document]) -> Document:
    """The document under this name, or an empty one."""
    note = await engine.read_note(name)
    return kind() if note is None else decode(note.data, name, kind)


async def change(engine: Engine, name: str, kind: type[Document], how: Callable[[Document], Document]) -> Document:
    """Replace a document by what `how` makes of it; again if someone else was faster."""
    for _ in range(_TRIES):
        note = await engine.read_note(name)
        before = kind() if note is None else decode(note.data, name, kind)
        after = how(before)
        if note is not None and after == before:
            return after
        try:
            await engine.write_note(name, msgspec.json.encode(after), expected=note.version if note else NEW)
        except Conflict:
            continue
        return after
    raise StorageError(f"note {name!r} is written by others all the time; try again")


def decode(data: bytes, name: str, kind: type[Document]) -> Document:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"note {name!r} is not one of ours: {error}") from error


async def workers(engine: Engine) -> list[WorkerNote]:
    return [decode(note.data, note.name, WorkerNote) for note in await engine.notes(WORKERS)]
