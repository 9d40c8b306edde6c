"""Claims: candidates from the index, then one conditional write per task."""

from math import ceil

from qo.engines.object_per_task.keys import LEASES, Entry, holder_hash, index_key, is_stale
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.task_changes import TaskChanges
from qo.engines.object_per_task.task_store import StoredTask, next_document
from qo.engines.requests import in_parallel
from qo.errors import Conflict, StorageError
from qo.ids import random_fraction
from qo.model import ClaimAllowance, ClaimRequest, Status, Task, claim, eligible, in_order, is_due, lane_of

_MAX_LOST = 2  # tasks lost to other workers before the listing is too old
_CANDIDATES_PER_TASK, _EXTRA_CANDIDATES = 8, 64
_MAX_WIDTH = 256.0
_CONTENTION_WIDTH = 8.0
_CONTENDED_SHARE = 64  # under contention a worker tries at most one in 64 of the candidates at a time
_WIDTH_DECAY = 0.97  # per claim without a conflict


class ClaimSpread:
    """Chooses which candidates a claim tries first: in order without contention, otherwise spread at random."""

    def __init__(self) -> None:
        self._width = 1.0  # candidates to choose from, as a multiple of the requested number

    @property
    def is_contended(self) -> bool:
        return self._width > _CONTENTION_WIDTH

    def batch_size(self, candidates: int) -> int:
        """How many candidates to try concurrently.

        Under contention only a share, so that workers try different ones.
        """
        return max(1, candidates // _CONTENDED_SHARE) if self.is_contended else candidates

    def arrange(self, candidates: list[Entry], limit: int) -> list[Entry]:
        if self._width <= 1.0:
            return candidates
        window = ceil(limit * self._width)
        return shuffled(candidates[:window]) + candidates[window:]

    def adapt(self, *, won: int, lost: int) -> None:
        if lost > won:
            self._width = _MAX_WIDTH  # growing step by step would cause conflicts at every step
        elif lost:
            self._width = min(_MAX_WIDTH, 2 * self._width)
        elif won:
            self._width = max(1.0, self._width * _WIDTH_DECAY)


def shuffled(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda _: random_fraction())


class TaskClaims:
    def __init__(self, store: TasksLayout, changes: TaskChanges) -> None:
        self._documents, self._index, self._lanes = store.documents, store.index, store.lanes
        self._changes, self._clock = changes, store.clock
        self.spread = ClaimSpread()
        self.damage_met = 0  # damaged tasks that claims have tried
        self._in_progress: set[str] = set()  # ids of tasks that claims of this process are taking

    async def repeat(self, request: ClaimRequest) -> list[Task]:
        """The tasks that an earlier attempt of this claim got."""
        holder = holder_hash(request.lease_id)
        page = await self._index.read(LEASES)
        ids = {entry.id for entry in page.entries if entry.holder == holder}
        found = await in_parallel(self._documents.read_live, sorted(ids))
        tasks = [stored.task for stored in found if stored is not None]
        mine = [task for task in tasks if task.status is Status.RUNNING and task.lease_id == request.lease_id]
        return in_order(mine, self._clock(), lane_of)

    def max_candidates(self, request: ClaimRequest) -> int | None:
        """The number of candidates that a claim needs, allowing for lost ones. None under contention: all of them."""
        if self.spread.is_contended:
            return None
        return _CANDIDATES_PER_TASK * request.limit + _EXTRA_CANDIDATES + len(self._in_progress)

    async def claim(self, request: ClaimRequest, candidates: list[Entry]) -> list[Task]:
        """Claim the first candidates, and the next ones in place of those lost to other workers."""
        free = [entry for entry in candidates if entry.id not in self._in_progress]
        remaining, claimed, left, lost = (
            self.spread.arrange(free, request.limit),
            list[Task](),
            ClaimAllowance(request),
            0,
        )
        while remaining and len(claimed) < request.limit and lost <= self._max_lost(request):
            size = min(request.limit - len(claimed), self.spread.batch_size(len(remaining)))
            batch, remaining = self._next_batch(remaining, left, size)
            if not batch:
                break
            missed = await self._take_batch(batch, request, claimed)
            for entry in missed:
                if names := self._lanes.names(entry):
                    left.give_back(names.type, names.needs)
            # damaged tasks are not lost to a worker
            lost += sum(self._documents.is_readable(entry.id) for entry in missed)
            if claimed and self.spread.is_contended:
                break
            remaining = shuffled(remaining) if lost > 1 else remaining  # there are other workers
        self.spread.adapt(won=len(claimed), lost=lost)
        return in_order(claimed, self._clock(), lane_of)

    def _max_lost(self, request: ClaimRequest) -> int:
        """After this many lost tasks the listing is too old."""
        return _MAX_LOST if self.spread.is_contended else request.limit + _MAX_LOST

    def _next_batch(self, entries: list[Entry], left: ClaimAllowance, size: int) -> tuple[list[Entry], list[Entry]]:
        """The entries to try now, and the others. A task is tried once per batch: one of its entries may be stale."""
        batch: dict[str, Entry] = {}
        waiting: list[Entry] = []
        for number, entry in enumerate(entries):
            if len(batch) == size:
                return list(batch.values()), waiting + entries[number:]
            names = self._lanes.names(entry)
            if entry.id in batch:
                waiting.append(entry)
            elif names is None or entry.id in self._in_progress:
                continue
            elif left.take(names.type, names.needs):
                self._in_progress.add(entry.id)
                batch[entry.id] = entry
        return list(batch.values()), waiting

    async def _take_batch(self, batch: list[Entry], request: ClaimRequest, claimed: list[Task]) -> list[Entry]:
        """Add tasks to `claimed` and return the other entries. Raises StorageError only if none was claimed."""
        missed: list[Entry] = []

        async def take(entry: Entry) -> None:
            try:
                task = await self._take(entry, request)
            finally:
                self._in_progress.discard(entry.id)
            if task is None:
                missed.append(entry)
            else:
                claimed.append(task)

        try:
            await in_parallel(take, batch)
        except StorageError:
            if not claimed:
                raise
        return missed

    async def _take(self, entry: Entry, request: ClaimRequest) -> Task | None:
        stored = await self._documents.read(entry.id)
        now = self._clock()
        if stored is None:
            is_damaged = not self._documents.is_readable(entry.id)
            self.damage_met += is_damaged
            self._index.suspect(entry.key, is_damaged=is_damaged)
            return None
        if not self._is_claimable(entry, stored, request, now):
            return None
        task = claim(stored.task, request, now)
        try:
            await self._changes.write(next_document(stored.document, task), stored)
        except Conflict:
            self._discard_claim(entry, task, request)
            return None
        return task

    def _is_claimable(self, entry: Entry, stored: StoredTask, request: ClaimRequest, now: float) -> bool:
        """Whether the entry matches the task's current state. If not, it is stale or belongs to a write in progress."""
        if entry.age > (stored.task.created_at, stored.task.version):
            self._index.suspect(entry.key)
            return False
        if is_stale(entry, stored.task):
            self._index.disregard(entry.key)
            return False
        task = stored.task
        return stored.is_alive and is_due(task, now) and eligible(request, task.queue, task.type, task.stored_needs)

    def _discard_claim(self, entry: Entry, task: Task, request: ClaimRequest) -> None:
        """Another worker won. Remove this claim's lease entry: its lease id is unique, unless the claim is a repeat."""
        self._index.disregard(entry.key)
        lease = index_key(task)
        if lease is not None and not request.is_repeat:
            self._index.remove(lease)
