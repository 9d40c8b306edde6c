"""The documents qo keeps as notes: what workers obey, who works here, what types are known, who leads.

A note that cannot be read raises `DamagedNote`. Nothing is deleted because it cannot be read: `set_aside` keeps the
bytes under `quarantine/`, those of an administrator's note under `admin/quarantine/`, before a note is dropped or
written over.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from qo.damage import QUARANTINE
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote, StorageError
from qo.model import ADMIN_NOTES, ANY, NEW, UNREADABLE, Note

log = logging.getLogger("qo.notes")

CONTROL = "control"
KNOWN_TYPES = "types"
LEADER = "monitor"
TOKENS = f"{ADMIN_NOTES}tokens"
WORKERS = "workers/"

DEAD_AFTER = 90.0  # seconds of silence after which a worker is dead: three missed heartbeats

MAX_LIVE_TYPES = 1000  # in one queue, unless the switches say otherwise
MAX_KNOWN_TYPES = 10_000
_KNOWN_TYPES_LENGTH = 512 * 1024  # characters of all their names; a server takes no note of more than 1 MiB
_TRIES = 50  # a note is written seldom: so many lost races in a row mean something is broken


Instant = Annotated[float, Meta(ge=-62_135_596_800, le=253_402_300_799)]  # what ISO 8601 can show: years 1 to 9999


class Controls(Struct, frozen=True, kw_only=True):
    """What every worker obeys while it runs, and every producer."""

    paused: bool = False
    paused_queues: frozenset[str] = frozenset()
    paused_types: frozenset[str] = frozenset()
    rate_limit: float = 0.0  # tasks a second started by one worker; 0 is no limit
    rate_limits: dict[str, float] = {}  # the same by type, instead of what the code says
    max_types: int | None = None  # types with unfinished tasks in one queue; None: MAX_LIVE_TYPES, 0: no limit
    draining: frozenset[str] = frozenset()  # ids of workers that are to finish what they run and leave


class WorkerNote(Struct, frozen=True, kw_only=True):
    """A worker's registration, rewritten with every heartbeat."""

    worker_id: str
    status: str = "active"  # or draining, dead
    started_at: Instant
    last_heartbeat: Instant
    queues: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()  # of a bucket; empty: all
    capacity: int
    current_load: int = 0  # handlers that run
    current_tasks: tuple[str, ...] = ()
    waiting: int = 0  # tasks it has claimed and not started
    tasks_completed: int = 0
    tasks_failed: int = 0
    host: str = ""
    pid: int = 0
    version: str = ""
    owner: str = ""  # of a worker over HTTP: the id of the token that registered it, the only one that may speak for it


class KnownTypes(Struct, frozen=True, kw_only=True):
    """Every type a worker has ever registered here. No worker has had a handler for a type outside it."""

    types: frozenset[str] = frozenset()


class Leader(Struct, frozen=True, kw_only=True):
    """Which monitor does the work until when."""

    holder: str = ""
    until: Instant = 0.0
    term: float = 0.0  # seconds the leader asked for; by this, others notice an `until` of a clock that was wrong


Document = TypeVar("Document", bound=Struct)


async def read(engine: Engine, name: str, kind: type[Document]) -> Document:
    """The document under this name, or an empty one."""
    note = await engine.read_note(name)
    return kind() if note is None else decode(note, kind)


async def read_or(engine: Engine, name: str, kind: type[Document], last_known: Document) -> Document:
    """The document under this name; `last_known` if it cannot be read, which is reported once."""
    try:
        return await read(engine, name, kind)
    except DamagedNote as error:
        report(error)
        return last_known


async def change(
    engine: Engine,
    name: str,
    kind: type[Document],
    how: Callable[[Document], Document],
    *,
    instead: Callable[[], Awaitable[Document]] | None = None,
) -> Document:
    """Replace a document by what `how` makes of it; again if someone else was faster.

    A document that cannot be read is set aside, and what `instead` finds takes its place, by default an empty one.
    """
    for _ in range(_TRIES):
        note = await engine.read_note(name)
        try:
            before = kind() if note is None else decode(note, kind)
            is_stored = note is not None
        except DamagedNote as error:
            await set_aside(engine, error)
            before = kind() if instead is None else await instead()
            is_stored = False
        after = how(before)
        if is_stored and after == before:
            return after
        try:
            data = _encode(after, over=note if is_stored else None)
            await engine.write_note(name, data, expected=note.version if note else NEW)
        except Conflict:
            continue
        return after
    raise StorageError(f"note {name!r} is written by others all the time; try again")


def _encode(document: Struct, over: Note | None) -> bytes:
    """With the fields that a newer qo wrote into the note it replaces, and this one does not know."""
    data = msgspec.json.encode(document)
    if over is None:
        return data
    fields = msgspec.json.decode(over.data, type=dict[str, msgspec.Raw])
    unknown = fields.keys() - set(document.__struct_fields__)
    if not unknown:
        return data
    known = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(known | {name: fields[name] for name in unknown})


def decode(note: Note, kind: type[Document]) -> Document:
    try:
        document = msgspec.json.decode(note.data, type=kind)
        fields = msgspec.json.decode(note.data, type=dict[str, msgspec.Raw])
    except (*UNREADABLE, TypeError) as error:
        raise DamagedNote(*note, f"it is no {kind.__name__}: {error}") from error
    if fields.keys().isdisjoint(kind.__struct_fields__):  # with defaults for all, any object would do
        raise DamagedNote(*note, f"it is no {kind.__name__}: it has none of its fields")
    if isinstance(document, WorkerNote) and note.name != WORKERS + document.worker_id:
        raise DamagedNote(*note, f"it speaks of worker {document.worker_id!r:.80}")
    return document


def is_dead(worker: WorkerNote, now: float, after: float = DEAD_AFTER) -> bool:
    """The one rule: a worker is dead once a monitor has said so, or once it has been silent for `after` seconds."""
    return worker.status == "dead" or now - worker.last_heartbeat > after


async def workers(engine: Engine) -> list[WorkerNote]:
    """Everyone registered, but for those whose notes cannot be read. These are reported once."""
    found = []
    for note in await engine.notes(WORKERS):
        try:
            found.append(decode(note, WorkerNote))
        except DamagedNote as error:
            report(error)
    return found


async def make_types_known(engine: Engine, types: Iterable[str], *, only_if_room: bool = False) -> KnownTypes:
    """Add to the known types.

    Their note has a limit: beyond it, types that no worker is registered for make room. With `only_if_room`, the new
    ones push no others out.
    """
    wanted = frozenset(types)
    registered: frozenset[str] | None = None

    def known(before: KnownTypes) -> KnownTypes:
        together = before.types | wanted
        if before.types.issuperset(wanted) or _has_room(together):
            return KnownTypes(types=together)
        if registered is None:
            raise _Full
        first = registered if only_if_room else registered | wanted
        return KnownTypes(types=_as_many_as_fit([*sorted(together & first), *sorted(together - first - wanted)]))

    async def in_use() -> KnownTypes:
        """After damage every type that occurs counts as known: a worker may fail tasks of an unknown one."""
        registered = {type_ for worker in await workers(engine) for type_ in worker.types}
        return KnownTypes(types=frozenset(registered | {lane.type for lane in await engine.count()}))

    try:
        return await change(engine, KNOWN_TYPES, KnownTypes, known, instead=in_use)
    except _Full:
        registered = frozenset(type_ for worker in await workers(engine) for type_ in worker.types)
        return await change(engine, KNOWN_TYPES, KnownTypes, known, instead=in_use)


class _Full(Exception):
    """The note of known types has no room for more."""


def _has_room(types: Collection[str]) -> bool:
    return len(types) <= MAX_KNOWN_TYPES and sum(map(len, types)) <= _KNOWN_TYPES_LENGTH


def _as_many_as_fit(types: Sequence[str]) -> frozenset[str]:
    lengths = accumulate(map(len, types[:MAX_KNOWN_TYPES]))
    return frozenset(type_ for type_, length in zip(types, lengths, strict=False) if length <= _KNOWN_TYPES_LENGTH)


async def set_aside(engine: Engine, error: DamagedNote) -> None:
    """Keep the bytes of a note that cannot be read, before it is dropped or written over."""
    report(error)
    folder = ADMIN_NOTES if error.name.startswith(ADMIN_NOTES) else ""  # what was protected stays protected
    await engine.write_note(f"{folder}{QUARANTINE}{error.name}", error.data, expected=ANY)


@lru_cache(1024)
def _report(name: str, version: str, problem: str) -> None:  # noqa: ARG001 - a later version is reported again
    log.error("skipping note %s, which cannot be read: %s", name, problem, extra={"note": name})


def report(error: DamagedNote) -> None:
    """Once for each version of a note."""
    _report(error.name, error.version, error.problem)
