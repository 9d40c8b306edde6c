"""The engine port over several shards of a log. Each task belongs to one shard, by its id."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Protocol, TypeVar

from qo.clock import Clock
from qo.engine import Engine, Snapshot
from qo.engines.hand_backs import HandBacks
from qo.engines.polling import ClaimPoller
from qo.engines.replicated_log.keys import shard_of
from qo.engines.replicated_log.log_shard import LogShard
from qo.engines.replicated_log.record_batches import write_each, write_in_batches
from qo.engines.replicated_log.shard_claims import ShardClaims
from qo.engines.replicated_log.shard_owners import ShardOwners
from qo.engines.requests import in_parallel
from qo.model import Added, Change, ClaimRequest, Counts, Event, Filter, NewTask, Note, Position, Task, cursor, stamps

T = TypeVar("T")
Answer = TypeVar("Answer")

_CLOSE_TIMEOUT = 30.0  # seconds
_MAX_REPAIRS = 4  # shards that are repaired at the same time
_MIN_STEP = 8  # tasks that a page reads from a shard at once


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


Identified = TypeVar("Identified", bound=_HasId)


class ShardedLog:
    """A shard loads its replica when a call needs it."""

    def __init__(self, shards: Sequence[LogShard], owners: ShardOwners, poller: ClaimPoller, clock: Clock) -> None:
        self.shards = shards
        self._owners, self._poller, self._clock = owners, poller, clock
        self._claims = ShardClaims(shards, owners, clock)
        self._hand_backs = HandBacks(self.apply)

    def home(self, task_id: str) -> LogShard:
        """The shard of a task, unless it follows a task of another shard under its idempotency key."""
        return self.shards[shard_of(task_id, len(self.shards))]

    def distrust(self) -> None:
        for shard in self.shards:
            shard.distrust()

    async def close(self) -> None:
        await self._hand_backs.finish(timeout=_CLOSE_TIMEOUT)
        await self._owners.leave()
        await in_parallel(LogShard.close, self.shards)

    async def _ask_each(self, ask: Callable[[LogShard], Awaitable[Answer]]) -> list[Answer]:
        return await in_parallel(ask, self.shards)

    # --- writing

    async def add(
        self, tasks: Sequence[NewTask], use_inbox: Callable[[LogShard, Sequence[NewTask]], Awaitable[bool]]
    ) -> list[Added]:
        """Add a batch. `use_inbox` decides for each shard whether another process adds its part."""
        now = self._clock()
        at = stamps(now, len(tasks))  # those of the whole batch: it keeps its order

        async def add(number: int, places: Sequence[int]) -> list[Added]:
            shard, part = self.shards[number], [tasks[place] for place in places]
            if await use_inbox(shard, part):
                return await shard.submit(part)

            async def commit(some: Sequence[int]) -> list[Added]:
                return await shard.add_part([part[n] for n in some], [at[places[n]] for n in some], now)

            return await write_in_batches([len(task.payload) for task in part], commit)

        return await self._on_homes([task.id for task in tasks], add)

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return await self._hand_backs.claim(self._claims.claim(request))

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        async def apply(number: int, places: Sequence[int]) -> list[bool]:
            return await self.shards[number].apply_all([changes[place] for place in places])

        return await self._everywhere([change.id for change in changes], apply)

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        async def delete(number: int, places: Sequence[int]) -> list[bool]:
            return await self.shards[number].delete([ids[place] for place in places])

        return await self._everywhere(ids, delete)

    async def repair(self) -> int:
        return sum(await in_parallel(LogShard.repair, self.shards, max_concurrent=_MAX_REPAIRS))

    async def _on_homes(
        self, ids: Sequence[str], write: Callable[[int, Sequence[int]], Awaitable[list[Answer]]]
    ) -> list[Answer]:
        """Run `write` on each shard with the places of its ids. The answers are in the order of the ids."""
        return await self._on_shards([shard_of(task_id, len(self.shards)) for task_id in ids], write)

    async def _on_shards(
        self, numbers: Sequence[int], write: Callable[[int, Sequence[int]], Awaitable[list[Answer]]]
    ) -> list[Answer]:
        places = defaultdict[int, list[int]](list)
        for place, number in enumerate(numbers):
            places[number].append(place)
        answers = await write_each(places, write)
        by_place = {
            place: answer for number in places for place, answer in zip(places[number], answers[number], strict=True)
        }
        return [by_place[place] for place in range(len(numbers))]

    async def _everywhere(
        self, ids: Sequence[str], write: Callable[[int, Sequence[int]], Awaitable[list[bool]]]
    ) -> list[bool]:
        """As `_on_homes`; then again on the shards of tasks that are not in their home."""
        answers = await self._on_homes(ids, write)
        refused = [place for place, answer in enumerate(answers) if not answer]
        if not refused:
            return answers
        located = await self._located([ids[place] for place in refused])
        strays = [place for place in refused if ids[place] in located]
        if strays:
            numbers = [located[ids[place]] for place in strays]
            again = await self._on_shards(
                numbers, lambda number, some: write(number, [strays[place] for place in some])
            )
            for place, answer in zip(strays, again, strict=True):
                answers[place] = answer
        return answers

    async def _located(self, ids: Sequence[str]) -> dict[str, int]:
        """The shards of those of the tasks that exist, and are not in their home."""
        at_home = await self._get_at_home(ids)
        missing = [task_id for task_id, task in zip(ids, at_home, strict=True) if task is None]
        return {task.id: number for number, task in await self._strays(missing)}

    async def _strays(self, missing: Sequence[str]) -> list[tuple[int, Task]]:
        """Search all shards for tasks that are not in their home. A task under a key follows the first one under it."""
        if not missing:
            return []
        found = await self._ask_each(lambda shard: shard.get(missing))
        return [(number, task) for number, tasks in enumerate(found) for task in tasks if task is not None]

    # --- reading

    async def _get_at_home(self, ids: Sequence[str]) -> list[Task | None]:
        async def get(number: int, places: Sequence[int]) -> list[Task | None]:
            return await self.shards[number].get([ids[place] for place in places])

        return await self._on_homes(ids, get)

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        found = await self._get_at_home(ids)
        missing = [task_id for task_id, task in zip(ids, found, strict=True) if task is None]
        strays = {task.id: task for _, task in await self._strays(missing)}
        return [task or strays.get(task_id) for task_id, task in zip(ids, found, strict=True)]

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await _merged_page(self.shards, where, limit=limit, after=after, created_before=created_before)

    async def snapshot(self) -> Snapshot:
        """All tasks. The version grows with each write to any shard."""
        shards = await self._ask_each(LogShard.snapshot)
        tasks = [task for shard in shards for task in shard.tasks]
        tasks.sort(key=lambda task: (task.created_at, task.id), reverse=True)
        return Snapshot(tasks, sum(shard.version for shard in shards))

    async def count(self, batch: str | None = None) -> Counts:
        total: Counter[object] = Counter()
        for counts in await self._ask_each(lambda shard: shard.count(batch)):
            total.update(counts)
        return dict(total)  # type: ignore[arg-type]

    async def history(self, task_id: str) -> list[Event]:
        if events := await self.home(task_id).history(task_id):
            return events
        return next(filter(None, await self._ask_each(lambda shard: shard.history(task_id))), [])

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        await self._poller.wait(lambda: self._claims.poll(request), timeout)

    # --- notes that transactions write: about a damaged row, in the shard of the row

    async def read_note(self, name: str) -> Note | None:
        return next(filter(None, await self._ask_each(lambda shard: shard.read_note(name))), None)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        return await (await self._holder(name) or self.shards[0]).write_note(name, data, expected=expected)

    async def notes(self, prefix: str) -> list[Note]:
        return [*chain.from_iterable(await self._ask_each(lambda shard: shard.notes(prefix)))]

    async def drop_note(self, name: str) -> None:
        holder = await self._holder(name)
        if holder is not None:
            await holder.drop_note(name)

    async def _holder(self, name: str) -> LogShard | None:
        found = await self._ask_each(lambda shard: shard.read_note(name))
        return next((shard for shard, note in zip(self.shards, found, strict=True) if note is not None), None)


# --- pages


async def _merged_page(
    shards: Sequence[Engine], where: Filter, *, limit: int, after: str, created_before: float | None
) -> list[Task]:
    """The first `limit` tasks of all shards, newest first. A cursor is the position of a task in time, in any shard.

    Each shard is read in steps of about its share, so that a page does not hold a whole page of every shard.
    """
    step = max(_MIN_STEP, 2 * limit // len(shards))
    found: dict[int, list[Task]] = {number: [] for number in range(len(shards))}
    short = [*found]  # shards that may have more of the first tasks
    page: list[Task] = []

    async def read(number: int) -> bool:
        """Read the next tasks of a shard. Returns whether there may be more."""
        start = cursor(found[number][-1]) if found[number] else after
        some = await shards[number].find(where, limit=min(step, limit), after=start, created_before=created_before)
        found[number] += some
        return len(some) == min(step, limit)

    has_more = dict.fromkeys(short, True)
    while short and limit > 0:
        for number, more in zip(short, await in_parallel(read, short), strict=True):
            has_more[number] = more
        page = sorted((task for tasks in found.values() for task in tasks), key=_position, reverse=True)[:limit]
        last = _position(page[-1]) if len(page) == limit else None
        short = [
            number
            for number, tasks in found.items()
            if has_more[number] and (last is None or _position(tasks[-1]) >= last)
        ]
    return page


def _position(task: Task) -> Position:
    return Position(task.created_at, task.id)
