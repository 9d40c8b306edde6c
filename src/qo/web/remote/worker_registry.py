"""Workers over HTTP. Each has a session in this server and a note in the store, so that every server accepts it."""

import asyncio

import msgspec
from litestar.exceptions import NotFoundException, PermissionDeniedException, TooManyRequestsException
from msgspec.structs import replace

from qo import notes
from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.errors import DamagedNote, InvalidTask
from qo.ids import new_id
from qo.model import (
    ANY,
    check_name,
    check_names,
    check_types,
)
from qo.notes import Controls, WorkerNote
from qo.rate_limits import WHOLE, RateLimits
from qo.web.callers import LOCAL_CALLER, Caller
from qo.web.remote.messages import Recorded, Register

MAX_SESSIONS = 10_000
MAX_REGISTERED = 10_000  # workers of a store, of all tokens and servers
_REGISTRATION_SIZE = 64 * 1024  # bytes of a worker's note
_COUNT_INTERVAL = 10.0  # seconds between counts of the registered workers
MAX_RECORDED = 1000  # results that a session keeps, for repeats that the store no longer recognises
MAX_CAPACITY = 10_000
_CONTACT_INTERVAL = 10.0  # seconds after which any request of a worker updates its note
_VERSION_LENGTH = 64


class WorkerSession:
    """The state of one worker on one server."""

    def __init__(self, note: WorkerNote) -> None:
        self.note = note
        self.rates = Rates(boot_clock)
        self.recorded: dict[str, tuple[str | None, Recorded]] = {}  # by task: the lease and the recorded result

    def remember(self, lease_id: str | None, recorded: Recorded) -> None:
        self.recorded.pop(recorded.task_id, None)
        self.recorded[recorded.task_id] = (lease_id, recorded)
        if len(self.recorded) > MAX_RECORDED:
            del self.recorded[next(iter(self.recorded))]


class WorkerRegistry:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._sessions: dict[str, WorkerSession] = {}
        self._known_types: set[str] = set()
        self._writing = asyncio.Lock()
        self._registered, self._count_again_at = 0, float("-inf")

    async def register(self, message: Register, caller: Caller) -> WorkerSession:
        """Register a worker of this caller, restricted to the limits of the caller."""
        now, limits = self._clock(), caller.limits
        await self._check_room()
        note = WorkerNote(
            worker_id=new_id(self._clock),
            started_at=now,
            last_heartbeat=now,
            queues=_inside("queues", check_names("queues", message.queues), limits.queues),
            types=_inside("types", check_types("types", message.types), limits.types),
            capabilities=check_names("capabilities", message.capabilities),
            capacity=check_capacity("capacity", message.capacity, least=1),
            version=_version(message.version),
            owner=_owner(caller),
        )
        if len(msgspec.json.encode(note)) > _REGISTRATION_SIZE:
            raise InvalidTask("types", f"are too long: a registration can have up to {_REGISTRATION_SIZE:,} bytes")
        await self.make_known(note.types)
        await self._write(note)
        self._registered += 1
        return self._start_session(note)

    async def _check_room(self) -> None:
        """Raises a 429 if too many workers are registered. They are counted periodically, and before a rejection."""
        if self._registered < MAX_REGISTERED and boot_clock() < self._count_again_at:
            return
        self._registered = len(await self._engine.notes(notes.WORKERS))
        self._count_again_at = boot_clock() + _COUNT_INTERVAL
        if self._registered >= MAX_REGISTERED:
            raise TooManyRequestsException(
                f"{self._registered:,} workers are registered, the limit is {MAX_REGISTERED:,};"
                " workers should report the status dead when they stop, and a monitor removes dead workers"
            )

    async def session(self, worker_id: str, caller: Caller) -> WorkerSession:
        """The session of the worker, created from its note if the worker registered with another server.

        A worker belongs to the token that registered it. Other tokens are rejected.
        """
        check_name("worker_id", worker_id)
        session = self._sessions.get(worker_id) or await self._known(worker_id)
        if session.note.owner != _owner(caller):
            raise PermissionDeniedException(
                "this worker was registered with another token; register again with this one"
            )
        return session

    async def _known(self, worker_id: str) -> WorkerSession:
        stored = await self._engine.read_note(notes.WORKERS + worker_id)
        if stored is None:
            raise NotFoundException(f"there is no worker {worker_id}; register first")
        try:
            return self._start_session(notes.decode(stored, WorkerNote))
        except DamagedNote as error:
            await notes.set_aside(self._engine, error)
            raise NotFoundException(f"the registration of worker {worker_id} is damaged; register again") from error

    def _start_session(self, note: WorkerNote) -> WorkerSession:
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]  # it can be created again from its note
        session = self._sessions[note.worker_id] = WorkerSession(note)
        return session

    async def record_contact(self, session: WorkerSession) -> None:
        """Update the time of the last contact in the note, at most every `_CONTACT_INTERVAL` seconds."""
        if self._clock() - session.note.last_heartbeat >= _CONTACT_INTERVAL:
            await self.announce(session, session.note)

    async def announce(self, session: WorkerSession, note: WorkerNote) -> None:
        session.note = replace(note, last_heartbeat=self._clock())
        await self._write(session.note)

    async def leave(self, session: WorkerSession) -> None:
        self._sessions.pop(session.note.worker_id, None)
        await self._engine.drop_note(notes.WORKERS + session.note.worker_id)

    async def make_known(self, types: tuple[str, ...], *, only_if_room: bool = False) -> None:
        """Add these types to the known types, so that workers do not report them as unknown."""
        if self._known_types.issuperset(types):
            return
        async with self._writing:  # concurrent polls may add the same types
            now = await notes.make_types_known(self._engine, types, only_if_room=only_if_room)
        if len(self._known_types) > 2 * notes.MAX_KNOWN_TYPES:
            self._known_types.clear()
        self._known_types |= now.types | set(types)  # including those without room, so that not every poll tries again

    async def _write(self, note: WorkerNote) -> None:
        await self._engine.write_note(notes.WORKERS + note.worker_id, msgspec.json.encode(note), expected=ANY)


def _owner(caller: Caller) -> str:
    return "" if caller is LOCAL_CALLER else caller.id


def _inside(field: str, names: tuple[str, ...], limit: frozenset[str]) -> tuple[str, ...]:
    """The requested names, or all names of the token if the worker requests none. Raises a 403 for other names."""
    if limit and not limit.issuperset(names):
        outside = next(name for name in names if name not in limit)
        raise PermissionDeniedException(f"this token is not for {outside!r} in `{field}`")
    return names or tuple(sorted(limit))


def check_capacity(field: str, capacity: int, *, least: int = 0) -> int:
    if not least <= capacity <= MAX_CAPACITY:
        raise InvalidTask(field, f"{capacity} is not a whole number from {least} to {MAX_CAPACITY:,}")
    return capacity


def _version(given: str) -> str:
    if len(given) > _VERSION_LENGTH or not given.isprintable():
        raise InvalidTask("version", f"must be at most {_VERSION_LENGTH} printable characters")
    return given


class Rates(RateLimits):
    """The rate limits of the controls, applied by the server for a worker over HTTP."""

    def apply(self, control: Controls) -> None:
        self.set_rates(control.rate_limits | {WHOLE: control.rate_limit})

    def per_type_limits(self) -> dict[str, int]:
        now = self._clock()
        return {type: max(0, bucket.available(now)) for type, bucket in self._buckets.items() if type != WHOLE}
