"""The engine port: what qo needs from a store.

Code above `engines/` calls only what `Engine` declares, and never checks which engine it has. Differences between
stores are members with defaults, which an engine overrides.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from qo.errors import InvalidSetting
from qo.model import PAYLOAD_LIMIT, Added, Change, ClaimRequest, Counts, Event, Filter, NewTask, Note, Task, cursor

_SNAPSHOT_PAGE_SIZE = 500  # tasks
_STEP_BYTES = 8 * 1024 * 1024  # of values read in one step, if their sizes are known in advance
_STEP_GROWTH = 8  # factor by which a step may grow over the previous one


class _Steps:
    """How many tasks to read in one step.

    The size of the values so far does not predict the next ones, so the number is limited too.
    """

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
    version: int = 0  # of a store that is one object: the number of its writes


class Engine(Protocol):
    """The interface of a store. Engines inherit from this class.

    Every write is durable before it returns. A batch is unordered and not atomic as a whole: each task in it succeeds
    or fails separately, and the results are in the order of the batch. A batch contains each task once (`BadBatch`).
    Timestamps come from the store's clock.

    Every call may raise these errors, and no error of a driver:

    - `StorageError`: the store cannot be reached or is full. Nothing was written. A later call may succeed.
    - `OutcomeUnknown`, a `StorageError`, of a call that writes: the write may have succeeded. Repeating it is safe.
    - `Refused`, a `StorageError`: the store rejects this call, and repeating it does not help.
    """

    @property
    def payload_limit(self) -> int:
        """The maximum size of a payload or result in bytes."""
        return PAYLOAD_LIMIT

    @property
    def default_retention(self) -> float:
        """Seconds to keep finished tasks unless a setting overrides it; 0.0 keeps them forever.

        Stores in which each stored task makes every write more expensive have another default.
        """
        return 0.0

    @property
    def shards(self) -> str:
        """The first digits of ids, one for each shard, if the store shows its tasks by shard."""
        return ""

    @property
    def is_remote(self) -> bool:
        """Whether the store is behind a qo server, which keeps the audit trail and the tokens."""
        return False

    @property
    def adds_directly(self) -> bool:
        """Whether `add_directly` can be called."""
        return False

    @property
    def registers_consumers(self) -> bool:
        """Whether a client that dequeues registers the types it takes (handled_types.py).

        False where such a write, between two calls of a client, could make calls of another process fail.
        """
        return True

    @property
    def advances_workflows(self) -> bool:
        """Whether `apply` continues workflows: only that of a WorkflowEngine, and of an engine that forwards to one."""
        return False

    async def open(self) -> None:
        """Connect, and create tables or objects that are missing. A second call has no effect."""

    async def close(self) -> None:
        """Close the store. A second call has no effect."""

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        """Store new tasks. The order of the batch is kept.

        All tasks of a batch have different ranks, even if they share a `run_at` (`created` in model/task.py). A task
        whose id already exists is not changed and returns `new=False`, so a call can be repeated safely.
        """

    async def add_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Added]:  # noqa: ARG002 - used by overrides
        """Add on the caller's database connection: the tasks exist if and only if the caller commits.

        Raises InvalidSetting if the store does not support transactions of the caller.
        """
        raise InvalidSetting("connection= requires a postgresql:// store")

    def add_directly(self, tasks: Sequence[NewTask]) -> list[Added]:  # noqa: ARG002 - used by overrides
        """As `add`, but blocking and without an event loop, from any thread. Only if `adds_directly` is True.

        For code without an event loop: a call through the loop of another thread costs as much as the write itself.
        """
        raise InvalidSetting("this store can be written only on an event loop; use `add`")

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """Lease the due and eligible tasks that rank first, and return them in this order (`in_order`).

        Of tasks with equal ranks, the one that was submitted earlier goes first; a batch keeps its order.

        Concurrent claims may leave gaps: a task that another claim is about to lease is skipped.

        A request with `is_repeat` returns the tasks that are still leased under its `lease_id`: those of the first
        call, whose response was lost. If there are none, it claims like a first call.

        If the caller is cancelled, the engine releases the leased tasks immediately, without counting a failure. If
        the store does not accept the release, their leases expire.
        """

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        """Write each change whose guard holds. False: the guard does not hold, or the task does not exist.

        A settlement that is already written returns True again.
        """

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        """Delete finished tasks and their history. False: the task does not exist or is not finished."""

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        """The current tasks; None for ids that do not exist."""

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        """One page of the matching tasks, newest first; with `created_before`, only those created before that time.

        The page starts after the task whose `cursor` is `after`. A cursor is opaque: the function `cursor` creates it
        and only engines read it. Raises InvalidSetting for an invalid one.
        """

    async def snapshot(self) -> Snapshot:
        """All tasks, newest first. Only a store of one object returns a consistent snapshot and a version."""
        tasks = page = await self.find(Filter(), limit=_SNAPSHOT_PAGE_SIZE)
        while len(page) == _SNAPSHOT_PAGE_SIZE:
            page = await self.find(Filter(), limit=_SNAPSHOT_PAGE_SIZE, after=cursor(page[-1]))
            tasks = [*tasks, *page]
        return Snapshot(tasks)

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        """As `get`, for callers that do not need payloads and results: these may be missing, or be references.

        For any number of ids, only a few values are in memory at a time.
        """
        found: list[Task | None] = []
        async for some in get_in_steps(self, ids):
            found += [None if task is None else without_values(task) for task in some]
        return found

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        """As `find`, for callers that do not need payloads and results: see `get_without_values`."""
        found: list[Task] = []
        async for some in find_in_steps(self, where, limit=limit, after=after, created_before=created_before):
            found += map(without_values, some)
        return found

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks of `find_without_values` with their payloads and results. Deleted tasks stay without."""
        whole = await self.get([task.id for task in tasks])
        return [read or task for read, task in zip(whole, tasks, strict=True)]

    async def count(self, batch: str | None = None) -> Counts:
        """The number of tasks by queue, type, status and priority. May be slightly old; zeros may be missing.

        With `batch`, of the tasks of this batch only. The cost may grow with the size of the batch.
        """

    async def history(self, task_id: str) -> list[Event]:
        """Every transition of a task, in order.

        A store that limits the size of histories may keep only the newest log.
        """

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        """Return when a claim may succeed, or after `timeout`. Returning early is always allowed."""

    async def now(self) -> float:
        """The time by the store's clock, which sets all timestamps."""

    async def repair(self) -> int:
        """Repair indexes and remove what crashed processes left behind; returns the number of repairs.

        A store with transactions only removes what is no longer used.
        """
        return 0

    async def read_note(self, name: str) -> Note | None:
        """Read a note, a small document in the store; None if it does not exist."""

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        """Write if the stored version is `expected` (or NEW, or ANY); returns the new version. Raises Conflict."""

    async def notes(self, prefix: str) -> list[Note]:
        """The notes whose names start with `prefix`, sorted by name."""

    async def drop_note(self, name: str) -> None:
        """Delete a note of any version. A missing note is not an error."""


async def get_in_steps(engine: Engine, ids: Sequence[str]) -> AsyncIterator[list[Task | None]]:
    """As `Engine.get`, in steps: the smaller the values, the more tasks in a step."""
    steps, at = _Steps(engine), 0
    while at < len(ids):
        some = await engine.get(ids[at : at + steps.size])
        yield some
        at += len(some)
        steps.read(task for task in some if task is not None)


async def find_in_steps(
    engine: Engine, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
) -> AsyncIterator[list[Task]]:
    """As `Engine.find`, in steps: the smaller the values, the more tasks in a step."""
    steps = _Steps(engine)
    while limit > 0:
        step_limit = min(steps.size, limit)
        some = await engine.find(where, limit=step_limit, after=after, created_before=created_before)
        yield some
        if len(some) < step_limit:
            return
        limit -= step_limit
        after = cursor(some[-1])
        steps.read(some)


async def find_pages(
    engine: Engine, where: Filter, *, page_size: int, created_before: float | None = None
) -> AsyncIterator[list[Task]]:
    """All matching tasks without their values, page by page. The caller may change or delete each page."""
    after = ""
    while page := await engine.find_without_values(where, limit=page_size, after=after, created_before=created_before):
        yield page
        after = cursor(page[-1])


def without_values(task: Task) -> Task:
    """The task without its payload and result. Whether it has a result is kept."""
    return replace(task, payload=b"null", result=None if task.result is None else b"null")
