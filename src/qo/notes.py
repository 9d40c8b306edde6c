"""The documents that qo stores as notes: controls, worker registrations, known types, the leading monitor.

A note that cannot be read raises `DamagedNote`. Before such a note is dropped or replaced, `set_aside` copies its bytes
to `quarantine/`, or to `admin/quarantine/` for a note under `admin/`.
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
from qo.model import ADMIN_NOTES, ANY, NEW, UNREADABLE, Limit, Note

log = logging.getLogger("qo.notes")

CONTROL = "control"
KNOWN_TYPES = "types"
LEADER = "monitor"
TOKENS = f"{ADMIN_NOTES}tokens"
WORKERS = "workers/"

DEAD_AFTER = 90.0  # seconds without a heartbeat after which a worker is dead: three missed heartbeats

MAX_LIVE_TYPES = 1000  # in one queue, unless the controls set another limit
MAX_KNOWN_TYPES = 10_000
_KNOWN_TYPES_LENGTH = 512 * 1024  # characters of all names; a server accepts notes of up to 1 MiB
_MAX_ATTEMPTS = 50  # notes are written rarely, so this many lost races mean that something is broken


Instant = Annotated[float, Meta(ge=-62_135_596_800, le=253_402_300_799)]  # the range of ISO 8601: years 1 to 9999


class Controls(Struct, frozen=True, kw_only=True):
    """The controls that all workers and producers read."""

    paused: bool = False
    paused_queues: frozenset[str] = frozenset()
    paused_types: frozenset[str] = frozenset()
    rate_limit: float = 0.0  # tasks per second started by one worker; 0 for no limit
    rate_limits: dict[str, float] = {}  # the same by type; overrides the code
    max_types: int | None = None  # types with unfinished tasks in one queue; None: MAX_LIVE_TYPES, 0: no limit
    # Fleet limits, which replace those in the code. By scope: `type:NAME`, `queue:NAME`, `key:NAME=VALUE`.
    limits: dict[str, Limit] = {}
    draining: frozenset[str] = frozenset()  # ids of workers that finish their running tasks and exit


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
    current_load: int = 0  # running handlers
    current_tasks: tuple[str, ...] = ()
    waiting: int = 0  # tasks that are claimed and not started
    tasks_completed: int = 0
    tasks_failed: int = 0
    host: str = ""
    pid: int = 0
    version: str = ""
    owner: str = ""  # of a worker over HTTP: the id of the token that registered it; no other token may use it


class KnownTypes(Struct, frozen=True, kw_only=True):
    """All types that workers have ever registered. No worker has had a handler for any other type."""

    types: frozenset[str] = frozenset()


class Leader(Struct, frozen=True, kw_only=True):
    """The leading monitor, and the end of its term."""

    holder: str = ""
    until: Instant = 0.0
    term: float = 0.0  # seconds; reveals an `until` that was computed with a wrong clock


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
    """Replace a document by `how(document)`, and try again if another process was faster. Raises StorageError.

    A document that cannot be read is set aside and replaced by the result of `instead`, or by an empty one.
    """
    for _ in range(_MAX_ATTEMPTS):
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
            data = encode_over(after, over=note if is_stored else None)
            await engine.write_note(name, data, expected=note.version if note else NEW)
        except Conflict:
            continue
        return after
    raise StorageError(f"note {name!r} is being changed by other processes; try again")


def encode_over(document: Struct, over: Note | None) -> bytes:
    """The document as JSON, with the unknown fields that a newer qo wrote into the replaced note."""
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
        raise DamagedNote(*note, f"it is not a {kind.__name__}: {error}") from error
    if fields.keys().isdisjoint(kind.__struct_fields__):  # all fields have defaults, so any object would be accepted
        raise DamagedNote(*note, f"it is not a {kind.__name__}: it has none of the fields")
    if isinstance(document, WorkerNote) and note.name != WORKERS + document.worker_id:
        raise DamagedNote(*note, f"it belongs to worker {document.worker_id!r:.80}")
    return document


def is_dead(worker: WorkerNote, now: float, after: float = DEAD_AFTER) -> bool:
    """Whether a monitor has marked the worker as dead, or it has sent no heartbeat for `after` seconds."""
    return worker.status == "dead" or now - worker.last_heartbeat > after


async def workers(engine: Engine) -> list[WorkerNote]:
    """All registered workers. Notes that cannot be read are skipped and reported once."""
    found = []
    for note in await engine.notes(WORKERS):
        try:
            found.append(decode(note, WorkerNote))
        except DamagedNote as error:
            report(error)
    return found


async def make_types_known(engine: Engine, types: Iterable[str], *, only_if_room: bool = False) -> KnownTypes:
    """Add to the known types.

    If their note is full, types for which no worker is registered are removed. With `only_if_room`, the new types do
    not replace others.
    """
    added = frozenset(types)
    registered: frozenset[str] | None = None

    def known(before: KnownTypes) -> KnownTypes:
        combined = before.types | added
        if before.types.issuperset(added) or _has_room(combined):
            return KnownTypes(types=combined)
        if registered is None:
            raise _Full
        first = registered if only_if_room else registered | added
        return KnownTypes(types=_as_many_as_fit([*sorted(combined & first), *sorted(combined - first - added)]))

    async def in_use() -> KnownTypes:
        """After damage, all types in use count as known, because workers may fail tasks of unknown types."""
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
    """Copy the bytes of a note that cannot be read to the quarantine. Call it before dropping or replacing the note."""
    report(error)
    folder = ADMIN_NOTES if error.name.startswith(ADMIN_NOTES) else ""  # protected notes stay protected
    await engine.write_note(f"{folder}{QUARANTINE}{error.name}", error.data, expected=ANY)


@lru_cache(1024)
def _report(name: str, version: str, problem: str) -> None:  # noqa: ARG001 - a later version is reported again
    log.error("skipping note %s, which cannot be read: %s", name, problem, extra={"note": name})


def report(error: DamagedNote) -> None:
    """Log a damaged note, once for each version."""
    _report(error.name, error.version, error.problem)
