"""The port on one side, the rooms of this layout on the other."""

from collections.abc import Sequence

from qo.bucket import Bucket
from qo.clock import Clock
from qo.damage import encode_damage, note_name
from qo.engine import Engine
from qo.engines.hand_backs import HandBacks
from qo.engines.note_objects import NoteObjects
from qo.engines.object_per_task.claim_wait import ClaimWait
from qo.engines.object_per_task.claims import TaskClaims
from qo.engines.object_per_task.full_scan import FullScan
from qo.engines.object_per_task.history import history
from qo.engines.object_per_task.keys import READY, SHARDS
from qo.engines.object_per_task.layout import store
from qo.engines.object_per_task.listing import TaskListing
from qo.engines.object_per_task.options import IndexMode, TasksOptions
from qo.engines.object_per_task.ready import Ready
from qo.engines.object_per_task.stored_format import FormatCheckedBucket, StoredFormat
from qo.engines.object_per_task.sweeper import IndexSweeper
from qo.engines.object_per_task.task_changes import TaskChanges
from qo.engines.object_per_task.task_counts import TaskCounts
from qo.engines.parallel import in_parallel
from qo.engines.retry import retry_opening
from qo.errors import Conflict, DamagedTask, StorageError
from qo.model import (
    NEW,
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Status,
    Task,
    apply,
    check_distinct,
    is_repeat,
    stamps,
)


class ObjectPerTaskEngine(Engine):
    """Time is the bucket's unless a clock is given."""

    shards = SHARDS

    def __init__(self, bucket: Bucket, options: TasksOptions | None = None, *, clock: Clock | None = None) -> None:
        self._options = options = options or TasksOptions()
        self._format = StoredFormat(bucket)
        checked = FormatCheckedBucket(bucket, self._format)
        self._store = here = store(checked, clock)
        self._clock = here.clock
        self._finding = TaskListing(here)
        self._counting = TaskCounts(here, self._finding)
        self._transitions = TaskChanges(here, self._counting.moved)
        self._ready = Ready(here, options)
        self._scanning = FullScan(here, self._finding, options)
        self._claiming = TaskClaims(here, self._transitions)
        self._sweeping = IndexSweeper(here, self._finding, self._counting)
        self._waiting = ClaimWait(self._ready, self._clock)
        self._notes = NoteObjects(checked, here.quarantine)
        self._hand_backs = HandBacks(self.apply)

    async def open(self) -> None:
        """Nothing to create; but a bucket that cannot be read says so here."""

        async def look() -> None:
            async for _ in self._store.bucket.keys(READY):
                break

        await retry_opening(look)
        await self._format.check()

    async def close(self) -> None:
        """Clean up behind what was done."""
        await self._hand_backs.finish()
        await self._store.index.finish()

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        now = self._clock()
        stamped = list(zip(tasks, stamps(now, len(tasks)), strict=True))
        answers = await in_parallel(lambda pair: self._add(*pair, lead=now - pair[1]), stamped)
        self._waiting.wake()
        await self._tell_of_damage()
        return answers

    async def _add(self, new: NewTask, at: float, *, lead: float) -> Added:
        try:
            return await self._transitions.add(new, at, lead=lead)
        except DamagedTask:  # it keeps its place, and the others of the batch are added
            return Added(new.id, new=False)

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return await self._hand_backs.claim(self._claim(request))

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        met = -1
        claimed: list[Task] = []
        while not claimed and met != self._claiming.damage_met:  # what was damaged stood before others
            met = self._claiming.damage_met
            claimed = await self._claim_some(request)
            await self._tell_of_damage()
        return claimed

    async def _tell_of_damage(self) -> None:
        """A note for each task that could not be read. Its object stays where it is."""
        untold = self._store.quarantine.take_untold()
        if untold:
            await in_parallel(lambda bad: self._tell(bad, untold[bad]), list(untold))

    async def _tell(self, task_id: str, problem: str) -> None:
        try:
            await self._notes.write(note_name(task_id), encode_damage(task_id, problem), NEW)
        except Conflict:  # another process has written it
            pass
        except StorageError:
            self._store.quarantine.tell_later(task_id, problem)

    async def _claim_some(self, request: ClaimRequest) -> list[Task]:
        if request.is_repeat and (mine := await self._claiming.again(request)):
            return mine
        if request.limit <= 0:
            return []
        if self._options.index_mode is IndexMode.LOG_SCAN:
            return await self._claiming.claim(request, await self._scanning.all(request))
        number, crowded = self._claiming.max_reached_for(request), self._claiming.spread.is_crowded
        claimed = await self._claiming.claim(
            request, await self._ready.candidates(request, number=number, roughly=crowded)
        )
        if not claimed and self._options.index_mode is IndexMode.HYBRID:
            claimed = await self._claiming.claim(request, await self._scanning.sometimes(request))
        return claimed

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        answers = await in_parallel(self._apply, changes)
        if any(change.to is Status.PENDING for change in changes):
            self._waiting.wake()
        return answers

    async def _apply(self, change: Change) -> bool:
        outcome = await self._transitions.change(change.id, lambda task: apply(task, change, self._clock()))
        if outcome.changed is not None:
            return True
        return outcome.seen is not None and is_repeat(outcome.seen, change)

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await in_parallel(self._delete, ids)

    async def _delete(self, task_id: str) -> bool:
        if await self._transitions.delete(task_id):
            return True
        if self._store.documents.is_readable(task_id) or not await self._store.documents.remove_unreadable(task_id):
            return False
        await self._notes.drop(note_name(task_id))
        return True

    async def repair(self) -> int:
        """Make the index whole and clear away what crashes left. For the monitor; nothing else relies on it."""
        return await self._sweeping.sweep()

    @property
    def quarantined(self) -> frozenset[str]:
        """Objects under our names that could not be read: left alone."""
        return frozenset(self._store.quarantine.keys)

    async def inspect(self, most: int) -> frozenset[str]:
        """Read that many tasks; which objects under our names could not be read."""
        await in_parallel(self._store.documents.read, (await self._finding.ids())[:most])
        return self.quarantined

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        found = await in_parallel(self._store.documents.read_living, ids)
        await self._tell_of_damage()
        return [None if kept is None else kept.task for kept in found]

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        found = await self._finding.find(where, limit, after, created_before)
        await self._tell_of_damage()
        return found

    async def count(self) -> Counts:
        return await self._counting.count()

    async def history(self, task_id: str) -> list[Event]:
        return await history(self._store.bucket, self._store.documents, task_id)

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        await self._waiting.wait(request, timeout)

    # --- notes

    async def now(self) -> float:
        return self._clock()

    async def read_note(self, name: str) -> Note | None:
        return await self._notes.read(name)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        return await self._notes.write(name, data, expected)

    async def notes(self, prefix: str) -> list[Note]:
        return await self._notes.find(prefix)

    async def drop_note(self, name: str) -> None:
        await self._notes.drop(name)
