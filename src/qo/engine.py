"""The engine port: what qo needs from a store."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from qo.model import Added, Change, ClaimRequest, Counts, Event, Filter, NewTask, Note, Task


class Engine(Protocol):
    """Where tasks live.

    Every write is durable before it returns. A batch is unordered and not atomic as a whole: each
    task in it succeeds or is refused on its own, and the answer list lines up with the batch.
    A batch names each task once (`BadBatch`). Instants are stamped by the store's own clock.
    """

    async def open(self) -> None:
        """Connect and create whatever is missing. Calling it again changes nothing."""

    async def close(self) -> None:
        """Let go of the store. Calling it again changes nothing."""

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        """Store new tasks; the engine may choose their ids. Of equal rank, the batch's order is kept."""

    async def claim(self, want: ClaimRequest) -> list[Task]:
        """Lease the due and eligible tasks that come first, and answer in this order (`in_order`).

        Competing claims may leave gaps: a task that another claim is about to take is passed over.
        """

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        """Write each change whose guard holds. False: it did not hold, or the task is gone.

        A settlement that was written before is answered True again.
        """

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        """Forget finished tasks and their history. False: unknown or not finished."""

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        """The tasks as they are now."""

    async def find(self, where: Filter, *, limit: int, after: str = "") -> list[Task]:
        """One page, newest first, starting behind the task whose `cursor` is `after`."""

    async def count(self) -> Counts:
        """How many tasks there are by queue, type, status and priority. May lag behind writes; zeros may be missing."""

    async def history(self, task_id: str) -> list[Event]:
        """Every transition of a task, in order."""

    async def wait(self, want: ClaimRequest, timeout: float) -> None:
        """Return when a claim may succeed, or after `timeout`. Returning early is always allowed."""

    async def read_note(self, name: str) -> Note | None:
        """A small document shared by all who use the store."""

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        """Write if the stored version is `expected` (or NEW, or ANY) and return the new one, else raise Conflict."""

    async def notes(self, prefix: str) -> list[Note]:
        """The notes whose names begin so, in order of name."""

    async def drop_note(self, name: str) -> None:
        """Remove a note, whatever its version; it may be gone already."""


@runtime_checkable
class Transactional(Protocol):
    """An engine that lives in a database the caller may have a transaction in."""

    async def add_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Added]:
        """Add on the caller's own connection: the tasks exist if and only if the caller commits."""


@runtime_checkable
class Repairable(Protocol):
    """An engine that keeps its indexes itself, on a store that cannot keep two things in step."""

    async def repair(self) -> int:
        """Make the indexes whole and clear away what crashes left; how much it was. A safety net, not a crutch."""


@runtime_checkable
class Timed(Protocol):
    """An engine that can tell the time it stamps."""

    async def now(self) -> float:
        """The store's clock."""


@runtime_checkable
class WriteBehind(Protocol):
    """An engine that may answer a write before its bucket has it, and read a copy older than the bucket's."""

    @property
    def is_synced(self) -> bool:
        """Whether the bucket has every write answered so far."""

    async def confirmed(self) -> bool:
        """Wait until the bucket has every write answered so far. False: those writes are lost."""

    async def sync(self) -> None:
        """Bring every write to the bucket now and read what it holds. Raises Conflict if the writes are lost."""


@runtime_checkable
class Spacious(Protocol):
    """An engine with room for large payloads and results beside the tasks."""

    payload_limit: int  # bytes, unless a queue's settings say otherwise


@runtime_checkable
class Audited(Protocol):
    """An engine behind a server that records who did what, so that its clients need not."""

    is_audited: bool


@runtime_checkable
class FindsWithoutValues(Protocol):
    """An engine that can find tasks without reading their large payloads and results."""

    async def find_without_values(self, where: Filter, *, limit: int, after: str = "") -> list[Task]:
        """As `find`, but a payload or result may be a reference to where it lies."""

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        """As `get`, in the same way."""

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        """Tasks that were found so, with their payloads and results."""


@runtime_checkable
class Sharded(Protocol):
    """An engine that keeps tasks in shards, which people may want to look at one by one."""

    shards: str  # the first digits of ids, one for each shard; empty if there are none


async def find_without_values(engine: Engine, where: Filter, *, limit: int, after: str = "") -> list[Task]:
    """As `find`, for callers that look at neither payloads nor results."""
    find = engine.find_without_values if isinstance(engine, FindsWithoutValues) else engine.find
    return await find(where, limit=limit, after=after)


async def get_without_values(engine: Engine, ids: Sequence[str]) -> list[Task | None]:
    """As `get`, for callers that look at neither payloads nor results."""
    get = engine.get_without_values if isinstance(engine, FindsWithoutValues) else engine.get
    return await get(ids)


def default_retention(engine: Engine) -> float:
    """Seconds finished tasks are kept unless someone says otherwise; 0.0 is for ever.

    An engine whose every write costs more with each task it keeps has this attribute.
    """
    asked: float = getattr(engine, "default_retention", 0.0)
    return asked
