"""Claims without the index: reads the tasks themselves, all of them or one page at a time."""

from qo.clock import boot_clock
from qo.engines.object_per_task.keys import Entry, entry_of, index_key, lane_of
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.listing import TaskListing
from qo.engines.object_per_task.options import TasksOptions
from qo.engines.parallel import in_parallel
from qo.model import ClaimRequest, eligibility, in_order, is_due


class FullScan:
    def __init__(self, store: TasksLayout, listing: TaskListing, options: TasksOptions) -> None:
        self._documents, self._lanes, self._listing, self._clock = store.documents, store.lanes, listing, store.clock
        self._page_size, self._interval = options.log_scan_page_size, options.scan_interval
        self._next_at = boot_clock() + self._interval
        self._shards = options.shards
        self._cursor = ""

    async def all(self, request: ClaimRequest) -> list[Entry]:
        found: list[Entry] = []
        ids = await self._listing.ids(self._shards)
        for start in range(0, len(ids), self._page_size):
            found += await self._due(ids[start : start + self._page_size], request)
        return in_order(found, self._clock(), lane_of)

    async def occasional(self, request: ClaimRequest) -> list[Entry]:
        """The due tasks of the next page, once per `scan_interval`. This finds tasks that the index lacks."""
        if boot_clock() < self._next_at:
            return []
        self._next_at = boot_clock() + self._interval
        ids = await self._listing.ids(self._shards)
        page = [task_id for task_id in ids if task_id > self._cursor][: self._page_size]
        self._cursor = page[-1] if len(page) == self._page_size else ""
        found = await self._due(page, request)
        return in_order(found, self._clock(), lane_of)

    async def _due(self, ids: list[str], request: ClaimRequest) -> list[Entry]:
        found, is_eligible = list[Entry](), eligibility(request)
        for stored in await in_parallel(self._documents.read_live, ids):
            if stored is None or not is_due(stored.task, self._clock()):
                continue
            task, key = stored.task, index_key(stored.task)
            if key is not None and is_eligible(task.queue, task.type, task.needs):
                self._lanes.content(task)
                found += filter(None, [entry_of(key)])
        return found
