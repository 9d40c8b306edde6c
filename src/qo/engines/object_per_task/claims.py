"""Claims: candidates from the index, then one guarded write each."""

from qo.engines.object_per_task.claim_spread import ClaimSpread, shuffled
from qo.engines.object_per_task.keys import LEASES, Entry, holder_hash, index_key, is_stale
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.task_changes import TaskChanges
from qo.engines.object_per_task.task_document import grown
from qo.engines.object_per_task.task_store import StoredTask
from qo.engines.parallel import in_parallel
from qo.errors import Conflict, StorageError
from qo.model import ClaimRequest, Status, Task, claim, eligible, in_order, is_due, lane_of

_PATIENCE = 2  # tasks lost to others
_CANDIDATES, _SPARE_CANDIDATES = 8, 64  # for each task wanted, and beside these


class TaskClaims:
    def __init__(self, store: TasksLayout, transitions: TaskChanges) -> None:
        self._documents, self._index, self._lanes = store.documents, store.index, store.lanes
        self._transitions, self._clock = transitions, store.clock
        self.spread = ClaimSpread()
        self.damage_met = 0  # damaged tasks that claims have reached for
        self._taking: set[str] = set()  # by claims of this process that are under way

    async def again(self, request: ClaimRequest) -> list[Task]:
        """What an earlier try of this claim got, if anything."""
        holder = holder_hash(request.lease_id)
        page = await self._index.read(LEASES)
        ids = {entry.id for entry in page.entries if entry.holder == holder}
        found = await in_parallel(self._documents.read_living, sorted(ids))
        tasks = [kept.task for kept in found if kept is not None]
        mine = [task for task in tasks if task.status is Status.RUNNING and task.lease_id == request.lease_id]
        return in_order(mine, self._clock(), lane_of)

    def max_reached_for(self, request: ClaimRequest) -> int | None:
        """How many candidates a claim looks at, if some are lost to others; None: in a crowd any of them."""
        return None if self.spread.is_crowded else _CANDIDATES * request.limit + _SPARE_CANDIDATES + len(self._taking)

    async def claim(self, request: ClaimRequest, candidates: list[Entry]) -> list[Task]:
        """Reach for the first; for those lost to others, reach for the next."""
        free = [entry for entry in candidates if entry.id not in self._taking]
        line, claimed, left, lost = (
            self.spread.arrange(free, request.limit),
            list[Task](),
            dict(request.per_type_limits),
            0,
        )
        while line and len(claimed) < request.limit and lost <= self._most_lost(request):
            wave, line = self._wave(line, left, min(request.limit - len(claimed), self.spread.at_once(len(line))))
            if not wave:
                break
            missed = await self._reach(wave, request, claimed)
            for entry in missed:
                if (names := self._lanes.names(entry)) and names.type in left:
                    left[names.type] += 1
            lost += sum(self._documents.is_readable(entry.id) for entry in missed)  # damaged ones went to nobody
            if claimed and self.spread.is_crowded:
                break
            line = shuffled(line) if lost > 1 else line  # we are not alone
        self.spread.learn(won=len(claimed), lost=lost)
        return in_order(claimed, self._clock(), lane_of)

    def _most_lost(self, request: ClaimRequest) -> int:
        """Beyond this the listing is too old to go on with."""
        return _PATIENCE if self.spread.is_crowded else request.limit + _PATIENCE

    def _wave(self, line: list[Entry], left: dict[str, int], size: int) -> tuple[list[Entry], list[Entry]]:
        """Who to reach for now, and who is next. Of several entries of one task the others wait: one may be stale."""
        wave: dict[str, Entry] = {}
        waiting: list[Entry] = []
        for number, entry in enumerate(line):
            if len(wave) == size:
                return list(wave.values()), waiting + line[number:]
            names = self._lanes.names(entry)
            if entry.id in wave:
                waiting.append(entry)
            elif names is not None and left.get(names.type, 1) > 0 and entry.id not in self._taking:
                if names.type in left:
                    left[names.type] -= 1
                self._taking.add(entry.id)
                wave[entry.id] = entry
        return list(wave.values()), waiting

    async def _reach(self, wave: list[Entry], request: ClaimRequest, claimed: list[Task]) -> list[Entry]:
        """Adds what was got to `claimed`, answers what was not. Trouble with one is no reason to lose the others."""
        missed: list[Entry] = []

        async def reach(entry: Entry) -> None:
            try:
                task = await self._take(entry, request)
            finally:
                self._taking.discard(entry.id)
            if task is None:
                missed.append(entry)
            else:
                claimed.append(task)

        try:
            await in_parallel(reach, wave)
        except StorageError:
            if not claimed:
                raise
        return missed

    async def _take(self, entry: Entry, request: ClaimRequest) -> Task | None:
        kept = await self._documents.read(entry.id)
        now = self._clock()
        if kept is None:
            is_damaged = not self._documents.is_readable(entry.id)
            self.damage_met += is_damaged
            self._index.suspect(entry.key, is_damaged=is_damaged)
            return None
        if not self._is_meant(entry, kept, request, now):
            return None
        task = claim(kept.task, request, now)
        try:
            await self._transitions.write(grown(kept.document, task), kept)
        except Conflict:
            self._leave(entry, task, request)
            return None
        return task

    def _is_meant(self, entry: Entry, kept: StoredTask, request: ClaimRequest, now: float) -> bool:
        """The entry stands for the task as it is. One that does not is stale, or ahead of a write under way."""
        if entry.age > (kept.task.created_at, kept.task.version):
            self._index.suspect(entry.key)
            return False
        if is_stale(entry, kept.task):
            self._index.disregard(entry.key)
            return False
        task = kept.task
        return kept.is_alive and is_due(task, now) and eligible(request, task.queue, task.type, task.needs)

    def _leave(self, entry: Entry, task: Task, request: ClaimRequest) -> None:
        """Someone was faster. Our lease entry bears a lease id nobody else has, unless this claim is a repeat."""
        self._index.disregard(entry.key)
        lease = index_key(task)
        if lease is not None and not request.is_repeat:
            self._index.remove(lease)
