"""The engine port for the layout `tasks`."""

from collections.abc import Sequence

from qo.bucket import Bucket
from qo.clock import Clock
from qo.damage import encode_damage, note_name
from qo.engine import Engine
from qo.engines.hand_backs import HandBacks
from qo.engines.note_objects import NoteObjects
from qo.engines.object_per_task.candidates import FullScan, ReadyCandidates
from qo.engines.object_per_task.claims import TaskClaims
from qo.engines.object_per_task.counts import BatchCounts, TaskCounts
from qo.engines.object_per_task.finder import TaskFinder
from qo.engines.object_per_task.keys import READY, SHARDS
from qo.engines.object_per_task.layout import FormatCheckedBucket, IndexMode, StoredFormat, TasksOptions, open_layout
from qo.engines.object_per_task.repair import IndexRepair
from qo.engines.object_per_task.task_changes import TaskChanges
from qo.engines.polling import ClaimPoller, PollResult
from qo.engines.requests import in_parallel, retry_opening
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
    """Uses the bucket's clock unless a clock is given."""

    shards = SHARDS

    def __init__(self, bucket: Bucket, options: TasksOptions | None = None, *, clock: Clock | None = None) -> None:
        self._options = options = options or TasksOptions()
        self._format = StoredFormat(bucket)
        checked = FormatCheckedBucket(bucket, self._format)
        self._layout = layout = open_layout(checked, clock)
        self._clock = layout.clock
        self._listing = TaskFinder(layout)
        self._counts = TaskCounts(layout, self._listing)
        self._batch_counts = BatchCounts(self._listing)
        self._changes = TaskChanges(layout, self._counts.record_move)
        self._ready = ReadyCandidates(layout, options)
        self._full_scan = FullScan(layout, self._listing, options)
        self._claims = TaskClaims(layout, self._changes)
        self._index_repair = IndexRepair(layout, self._listing, self._counts)
        self._poller = ClaimPoller(self._clock)
        self._notes = NoteObjects(checked, layout.quarantine)
        self._hand_backs = HandBacks(self.apply)

    async def open(self) -> None:
        """Check that the bucket can be read. Nothing needs to be created."""

        async def list_one() -> None:
            async for _ in self._layout.bucket.keys(READY):
                break

        await retry_opening(list_one)
        await self._format.check()

    async def close(self) -> None:
        """Wait for tasks that are being handed back, and for removals of index entries."""
        await self._hand_backs.finish()
        await self._layout.index.finish()

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        now = self._clock()
        stamped = list(zip(tasks, stamps(now, len(tasks)), strict=True))
        answers = await in_parallel(lambda pair: self._add(*pair, lead=now - pair[1]), stamped)
        self._poller.wake()
        await self._report_damage()
        return answers

    async def _add(self, new: NewTask, at: float, *, lead: float) -> Added:
        try:
            return await self._changes.add(new, at, lead=lead)
        except DamagedTask as damaged:  # it keeps its id, and the others are added
            return Added(damaged.task_id or new.id, new=False)

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return await self._hand_backs.claim(self._claim(request))

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        met = -1
        claimed: list[Task] = []
        while not claimed and met != self._claims.damage_met:  # damaged tasks may have hidden others
            met = self._claims.damage_met
            claimed = await self._claim_some(request)
            await self._report_damage()
        return claimed

    async def _report_damage(self) -> None:
        """Write a note for each task that could not be read. Its object is kept."""
        unreported = self._layout.quarantine.take_unreported()
        if unreported:
            await in_parallel(lambda bad: self._write_damage_note(bad, unreported[bad]), list(unreported))

    async def _write_damage_note(self, task_id: str, problem: str) -> None:
        try:
            await self._notes.write(note_name(task_id), encode_damage(task_id, problem), NEW)
        except Conflict:  # another process has written it
            pass
        except StorageError:
            self._layout.quarantine.report_later(task_id, problem)

    async def _claim_some(self, request: ClaimRequest) -> list[Task]:
        if request.is_repeat and (mine := await self._claims.repeat(request)):
            return mine
        if request.limit <= 0:
            return []
        if self._options.index_mode is IndexMode.LOG_SCAN:
            return await self._claims.claim(request, await self._full_scan.all(request))
        number, contended = self._claims.max_candidates(request), self._claims.spread.is_contended
        claimed = await self._claims.claim(
            request, await self._ready.candidates(request, number=number, approximate=contended)
        )
        if not claimed and self._options.index_mode is IndexMode.HYBRID:
            claimed = await self._claims.claim(request, await self._full_scan.occasional(request))
        return claimed

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        answers = await in_parallel(self._apply, changes)
        if any(change.to is Status.PENDING for change in changes):
            self._poller.wake()
        return answers

    async def _apply(self, change: Change) -> bool:
        outcome = await self._changes.change(change.id, lambda task: apply(task, change, self._clock()), change.log)
        if outcome.changed is not None:
            return True
        return outcome.seen is not None and is_repeat(outcome.seen, change)

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await in_parallel(self._delete, ids)

    async def _delete(self, task_id: str) -> bool:
        if await self._changes.delete(task_id):
            return True
        if self._layout.documents.is_readable(task_id) or not await self._layout.documents.remove_unreadable(task_id):
            return False
        await self._notes.drop(note_name(task_id))
        return True

    async def repair(self) -> int:
        """Rebuild index entries from the tasks and remove leftovers of crashes. Correctness does not depend on it."""
        return await self._index_repair.run()

    @property
    def quarantined(self) -> frozenset[str]:
        """Keys under the layout's prefixes that could not be read."""
        return frozenset(self._layout.quarantine.keys)

    async def inspect(self, limit: int) -> frozenset[str]:
        """Read up to `limit` tasks and return the keys under the layout's prefixes that could not be read."""
        await in_parallel(self._layout.documents.read, (await self._listing.ids())[:limit])
        return self.quarantined

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        found = await in_parallel(self._layout.documents.read_live, ids)
        await self._report_damage()
        return [None if stored is None else stored.task for stored in found]

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        found = await self._listing.find(where, limit, after, created_before)
        await self._report_damage()
        return found

    async def count(self, batch: str | None = None) -> Counts:
        if batch is None:
            return await self._counts.count()
        counts = await self._batch_counts.count(batch)
        await self._report_damage()
        return counts

    async def history(self, task_id: str) -> list[Event]:
        return await self._layout.documents.history(task_id)

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        async def poll() -> PollResult:
            next_at = self._ready.next_at
            is_due = next_at is not None and next_at <= self._clock()  # the next claim finds the task: no listing here
            found = is_due or bool(await self._ready.candidates(request, number=1))
            return PollResult(found, self._ready.next_at)

        self._poller.next_at = self._ready.next_at
        await self._poller.wait(poll, timeout)

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
