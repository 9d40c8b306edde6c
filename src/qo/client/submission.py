"""Checks of submissions: duplicates of existing tasks, and the limit of types of unfinished tasks in a queue."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from qo.clock import boot_clock
from qo.codec import same_value
from qo.engine import Engine, get_in_steps
from qo.errors import DuplicateTask, InvalidTask, KeyReused
from qo.ids import new_id
from qo.model import UNFINISHED, Added, NewTask, Status, Task, amend, plural
from qo.notes import CONTROL, MAX_LIVE_TYPES, Controls, read_or

_MAX_UNCHECKED = 10  # types that a process submits to a queue without reading the controls
_MAX_UNCOUNTED = 100  # types that a process submits to a queue without reading the counts, unless the limit was set
_RECHECK_INTERVAL = 60.0  # seconds after which the controls are read again
_MAX_REMEMBERED = 20_000  # types of all queues
_Types = dict[str, set[str]]  # by queue
_MAX_REPLACE_ATTEMPTS = 5  # the task may start, end and be followed by another between two calls


class LiveTypes:
    """Limits the number of types of unfinished tasks in a queue. The controls set the limit.

    Each type has its own lane, so a caller that uses a new type for each task would create any number of lanes. The
    limit is checked on submission, against the counts of the store. A process reads the controls once it has submitted
    more than `_MAX_UNCHECKED` types to a queue, and reads the counts once it has submitted more than `_MAX_UNCOUNTED`
    or the limit was set. It reads the counts again after half of the remaining number of types, so concurrent producers
    may exceed the limit slightly.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._submitted: _Types = {}  # by this process
        self._allowed: _Types = {}  # the same, since the controls were last read
        self._uncounted: dict[
            str, int
        ] = {}  # by queue: how many more types may be submitted before the counts are read again
        self._controls = Controls()
        self._check_again_at = float("-inf")
        self._checks, self._checked = 0, asyncio.Event()

    async def check(self, tasks: Sequence[NewTask]) -> None:
        """Raise InvalidTask if these tasks would exceed the limit of a queue."""
        if len(tasks) == 1 and self.is_known(tasks[0]):
            return
        if boot_clock() >= self._check_again_at:
            self._allowed.clear()
        new: _Types = {}
        for task in tasks:
            if task.type not in self._allowed.get(task.queue, ()):
                new.setdefault(task.queue, set()).add(task.type)
        if new and self._submits_more_than(_MAX_UNCHECKED, new):
            self._checks += 1
            try:
                await self._check(new)
            finally:
                self._checks -= 1
                self._checked.set()
        self._remember(new)

    def is_known(self, task: NewTask) -> bool:
        """Whether `check` would accept this task without reading the store. Can be called from any thread."""
        types = self._submitted.get(task.queue, ())
        if task.type not in types:
            return False
        if len(types) <= _MAX_UNCHECKED:
            return True
        return task.type in self._allowed.get(task.queue, ()) and boot_clock() < self._check_again_at

    async def finish(self) -> None:
        """Wait for the running checks. Their callers submit without another pause."""
        while self._checks:
            self._checked.clear()
            await self._checked.wait()

    def _submits_more_than(self, number: int, new: _Types) -> bool:
        return any(len(types | self._submitted.get(queue, set())) > number for queue, types in new.items())

    def _remember(self, new: _Types) -> None:
        if sum(map(len, self._submitted.values())) > _MAX_REMEMBERED:
            self._submitted.clear()
        for queue, types in new.items():
            self._submitted.setdefault(queue, set()).update(types)
            self._allowed.setdefault(queue, set()).update(types)

    async def _check(self, new: _Types) -> None:
        if boot_clock() >= self._check_again_at:
            self._controls = await read_or(self._engine, CONTROL, Controls, self._controls)
            self._check_again_at = boot_clock() + _RECHECK_INTERVAL
            self._uncounted.clear()
        limit = MAX_LIVE_TYPES if self._controls.max_types is None else self._controls.max_types
        if not limit or (self._controls.max_types is None and not self._submits_more_than(_MAX_UNCOUNTED, new)):
            return
        if all(len(types) <= self._uncounted.get(queue, 0) for queue, types in new.items()):
            for queue, types in new.items():
                self._uncounted[queue] -= len(types)
        else:
            await self._count(new, limit)

    async def _count(self, new: _Types, limit: int) -> None:
        live: _Types = {queue: set() for queue in new}
        for lane, number in (await self._engine.count()).items():
            if number and lane.status in UNFINISHED and lane.queue in live:
                live[lane.queue].add(lane.type)
        for queue, types in new.items():
            # Half of the remaining number, because other processes submit types too.
            self._uncounted[queue] = max(0, limit - len(live[queue] | types)) // 2
            more = types - live[queue]
            if more and len(live[queue] | types) > limit:
                self._check_again_at = float("-inf")  # the limit may be raised soon
                raise InvalidTask(
                    "type",
                    f"queue {queue} has unfinished tasks of {plural(len(live[queue]), 'type')}, and {len(more):,} more"
                    f" ({min(more)!r:.80}) would exceed the limit of {limit:,}; put what differs between tasks into the"
                    " payload, or raise the limit with `qo limit --max-types`",
                )


async def resolve_duplicate(engine: Engine, new: NewTask, added: Added) -> Added:
    """The stored task for `new`. Raises KeyReused, or DuplicateTask if the submission has on_duplicate="raise"."""
    if new.on_duplicate is None:
        (existing,) = await engine.get([added.id])
        if existing is not None:
            check_repeat(new, existing)
    check_refused(new, added.id)
    return await _replace(engine, new, added) if new.on_duplicate == "replace" else added


def check_refused(new: NewTask, existing: str) -> None:
    """Raise DuplicateTask if a duplicate of `existing` must not be submitted."""
    if new.on_duplicate == "raise":
        raise DuplicateTask(
            f"{new.type} in queue {new.queue} is unique, and task {existing} has the same arguments; wait until it has"
            ' ended, or submit with on_duplicate="keep"',
            task_id=existing,
        )


def check_repeat(new: NewTask, existing: Task | NewTask) -> None:
    """Raise KeyReused if a submission has the key of an existing task, but another payload."""
    if not same_value(new.payload, existing.payload):
        raise KeyReused(
            f"idempotency key {new.idempotency_key!r} of {new.type} in queue {new.queue} belongs to task {existing.id},"
            " which has another payload; choose another key, or submit the same payload",
            task_id=existing.id,
        )


async def check_repeats(engine: Engine, repeated: Sequence[NewTask], ids: Sequence[str]) -> None:
    """Raise KeyReused for the first mismatch. Only a few of the stored payloads are in memory at a time."""
    news = iter(repeated)
    async for some in get_in_steps(engine, ids):
        for existing, new in zip(some, news, strict=False):
            if existing is not None:
                check_repeat(new, existing)


def distinct_tasks(tasks: Sequence[NewTask]) -> dict[str, NewTask]:
    """By id: of tasks with the same id the first one, or the last one that replaces it.

    Raises KeyReused, or DuplicateTask, if a task may not repeat the one before it.
    """
    first: dict[str, NewTask] = {}
    for task in tasks:
        if task.idempotency_key is not None and task.id in first:
            check_refused(task, task.id)
            if task.on_duplicate is None:
                check_repeat(task, first[task.id])
        if task.id not in first or task.on_duplicate == "replace":
            first[task.id] = task
    return first


async def _replace(engine: Engine, new: NewTask, added: Added) -> Added:
    """Give the waiting task the values of `new`. A running task that is unique until it finishes is kept."""
    for _ in range(_MAX_REPLACE_ATTEMPTS):
        (is_replaced,) = await engine.apply([amend(added.id, new)])
        if is_replaced:
            return added
        (again,) = await engine.add([replace(new, next_id=new_id())])  # it has started or finished in the meantime
        if again.new:
            return again
        (existing,) = await engine.get([again.id])
        added = again
        if existing is not None and existing.status is not Status.PENDING:
            break
    return added
