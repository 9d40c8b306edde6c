"""The engine port: what qo needs from a store.

Code above `engines/` calls only what `Engine` declares. It never asks which engine it has: what differs between stores
is a member with a default, and an engine that differs overrides it.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from qo.errors import InvalidSetting
from qo.model import PAYLOAD_LIMIT, Added, Change, ClaimRequest, Counts, Event, Filter, NewTask, Note, Task, cursor

_SNAPSHOT_PAGE_SIZE = 500  # tasks
_STEP_BYTES = 8 * 1024 * 1024  # of values that one step reads, as far as their sizes are known
_STEP_GROWTH = 8  # how many times as many tasks the next step may read


class _Steps:
    """How many tasks to read at once. Small values say little about the next ones, so the number has a limit too."""

    def __init__(self, engine: "Engine") -> None:
        is_inline = engine.payload_limit <= PAYLOAD_LIMIT
        self.size, self._max_size = (32, 1024) if is_inline else (2, 64)  # tasks
        self._largest = 1  # bytes of the largest values so far

    def read(self, tasks: Iterable[Task]) -> None:
        """Adapt to the tasks of a step."""
        sizes = (len(task.payload) + len(task.result or b"") for task in tasks)
        self._largest = max(self._largest, *sizes, 1)
        self.size = max(1, min(self.size * _STEP_GROWTH, self._max_size, _STEP_BYTES // self._largest))


class Snapshot(NamedTuple):
    """All tasks of a store, newest first."""

    tasks: list[Task]
    version: int = 0  # of a store that is one object: how often it has been written


class Engine(Protocol):
    """Where tasks live. An engine inherits from this class.

    Every write is durable before it returns. A batch is unordered and not atomic as a whole: each
    task in it succeeds or is refused on its own, and the answer list lines up with the batch.
    A batch names each task once (`BadBatch`). Instants are stamped by the store's own clock.

    Every call may raise these errors, and no error of a driver:

    - `StorageError`: the store cannot be reached or is full. Nothing was written. A later call may succeed.
    - `OutcomeUnknown`, a `StorageError`, from a call that writes: the write may have landed. Repeating it is harmless.
    - `Refused`, a `StorageError`: the store will not do this, however often it is asked.
    """

    @property
    def payload_limit(self) -> int:
        """The most bytes of one payload or result that this store keeps."""
        return PAYLOAD_LIMIT

    @property
    def default_retention(self) -> float:
        """Seconds to keep finished tasks if no setting says otherwise; 0.0 keeps them forever.

        Not 0.0 where every write costs more with each task that is kept.
        """
        return 0.0

    @property
    def shards(self) -> str:
        """The first digits of ids, one for each shard, if the store keeps tasks in shards that people look at."""
        return ""

    @property
    def is_remote(self) -> bool:
        """Whether a qo server stands before the store. The server keeps the audit trail and the tokens."""
        return False

    @property
    def adds_directly(self) -> bool:
        """Whether `add_directly` works."""
        return False

    async def open(self) -> None:
        """Connect and create whatever is missing. Calling it again changes nothing."""

    async def close(self) -> None:
        """Let go of the store. Calling it again changes nothing."""

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        """Store new tasks; the engine may choose their ids. The batch's order is kept.

        No two tasks of a batch have the same rank, also if they share a `run_at` (`created` in model/task.py).
        A task whose id exists already is left alone and answered with `new=False`, so a repeated call is harmless.
        """

    async def add_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Added]:  # noqa: ARG002 - of overrides
        """Add on the caller's own database connection: the tasks exist if and only if the caller commits.

        Raises InvalidSetting if the store is no database that the caller can have a transaction in.
        """
        raise InvalidSetting("connection= joins a transaction of yours, and only a postgresql:// store has those")

    def add_directly(self, tasks: Sequence[NewTask]) -> list[Added]:  # noqa: ARG002 - of overrides
        """As `add`, without an event loop; blocks the caller, in any thread. Only where `adds_directly` is True.

        For code without an event loop: a detour through the loop of another thread costs as much as the write.
        """
        raise InvalidSetting("this store takes tasks only through an event loop; use `add`")

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """Lease the due and eligible tasks that come first, and answer in this order (`in_order`).

        Of tasks with equal ranks, the one that was submitted earlier goes first; a batch keeps its order.

        Competing claims may leave gaps: a task that another claim is about to take is passed over.

        A repeat, which the request says it is, returns the tasks that are still leased under its `lease_id`: those of
        the first call, whose answer was lost. If there are none, it claims like a first call.

        A caller that is cancelled gets no tasks: the engine hands those that were leased back, at once and without
        counting an attempt as failed. If the store does not take them back, their leases run out.
        """

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        """Write each change whose guard holds. False: it did not hold, or the task is gone.

        A settlement that was written before is answered True again.
        """

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        """Forget finished tasks and their history. False: unknown or not finished."""

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        """The tasks as they are now. None: no task has this id."""

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        """One page, newest first: of all tasks that match, or of those created before an instant.

        The page starts behind the task whose `cursor` is `after`. A cursor is opaque: it is made by `cursor` and read
        only by engines. Raises InvalidSetting for anything else.
        """

    async def snapshot(self) -> Snapshot:
        """Every task, newest first. Only a store of one object gives a consistent view, and the object's version."""
        tasks = page = await self.find(Filter(), limit=_SNAPSHOT_PAGE_SIZE)
        while len(page) == _SNAPSHOT_PAGE_SIZE:
            page = await self.find(Filter(), limit=_SNAPSHOT_PAGE_SIZE, after=cursor(page[-1]))
            tasks = [*tasks, *page]
        return Snapshot(tasks)

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        """As `get`, for callers that look at neither payloads nor results: these may be left out, or be references.

        However many ids are given, only a few values are in memory at once.
        """
        found: list[Task | None] = []
        async for some in get_in_steps(self, ids):
            found += [None if task is None else without_values(task) for task in some]
        return found

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        """As `find`, for callers that look at neither payloads nor results: see `get_without_values`."""
        found: list[Task] = []
        async for some in find_in_steps(self, where, limit=limit, after=after, created_before=created_before):
            found += map(without_values, some)
        return found

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        """Tasks that `find_without_values` found, with their payloads and results; those that are gone have none."""
        whole = await self.get([task.id for task in tasks])
        return [read or task for read, task in zip(whole, tasks, strict=True)]

    async def count(self) -> Counts:
        """How many tasks there are by queue, type, status and priority. May lag behind writes; zeros may be missing."""

    async def history(self, task_id: str) -> list[Event]:
        """Every transition of a task, in order."""

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        """Return when a claim may succeed, or after `timeout`. Returning early is always allowed."""

    async def now(self) -> float:
        """The store's clock, by which instants are stamped."""

    async def repair(self) -> int:
        """Make indexes whole and remove what crashes left behind; returns how many repairs were made.

        A store whose writes are transactions only removes what is no longer used.
        """
        return 0

    async def read_note(self, name: str) -> Note | None:
        """A small document shared by all who use the store."""

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        """Write if the stored version is `expected` (or NEW, or ANY) and return the new one, else raise Conflict."""

    async def notes(self, prefix: str) -> list[Note]:
        """The notes whose names begin so, in order of name."""

    async def drop_note(self, name: str) -> None:
        """Remove a note, whatever its version; it may be gone already."""


async def get_in_steps(engine: Engine, ids: Sequence[str]) -> AsyncIterator[list[Task | None]]:
    """As `Engine.get`, a few tasks at a time: many at once only while their values are small."""
    steps, at = _Steps(engine), 0
    while at < len(ids):
        some = await engine.get(ids[at : at + steps.size])
        yield some
        at += len(some)
        steps.read(task for task in some if task is not None)


async def find_in_steps(
    engine: Engine, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
) -> AsyncIterator[list[Task]]:
    """As `Engine.find`, a few tasks at a time: many at once only while their values are small."""
    steps = _Steps(engine)
    while limit > 0:
        asked = min(steps.size, limit)
        some = await engine.find(where, limit=asked, after=after, created_before=created_before)
        yield some
        if len(some) < asked:
            return
        limit -= asked
        after = cursor(some[-1])
        steps.read(some)


def without_values(task: Task) -> Task:
    """The task without its payload and result. Whether it has a result is kept."""
    return replace(task, payload=b"null", result=None if task.result is None else b"null")
