"""Claims without the index: the tasks themselves are read, all of them or a page at a time."""

from qo.clock import boot_clock
from qo.engines.object_per_task.keys import Entry, entry_of, index_key, lane_of
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.listing import TaskListing
from qo.engines.object_per_task.options import TasksOptions
from qo.engines.parallel import in_parallel
from qo.model import ClaimRequest, eligibility, in_order, is_due


class FullScan:
    def __init__(self, store: TasksLayout, finding: TaskListing, options: TasksOptions) -> None:
        self._documents, self._lanes, self._finding, self._clock = store.documents, store.lanes, finding, store.clock
        self._page, self._interval = options.log_scan_page_size, options.scan_interval
        self._next_at = boot_clock() + self._interval
        self._shards = options.shards
        self._cursor = ""

    async def all(self, request: ClaimRequest) -> list[Entry]:
        found: list[Entry] = []
        ids = await self._finding.ids(self._shards)
        for start in range(0, len(ids), self._page):
            found += await self._due(ids[start : start + self._page], request)
        return in_order(found, self._clock(), lane_of)

    async def sometimes(self, request: ClaimRequest) -> list[Entry]:
        """The next page, if it is time for one. What the index lacked is put there."""
        if boot_clock() < self._next_at:
            return []
        self._next_at = boot_clock() + self._interval
        ids = await self._finding.ids(self._shards)
        page = [task_id for task_id in ids if task_id > self._cursor][: self._page]
        self._cursor = page[-1] if len(page) == self._page else ""
        found = await self._due(page, request)
        return in_order(found, self._clock(), lane_of)

    async def _due(self, ids: list[str], request: ClaimRequest) -> list[Entry]:
        found, is_eligible = list[Entry](), eligibility(request)
        for kept in await in_parallel(self._documents.read_living, ids):
            if kept is None or not is_due(kept.task, self._clock()):
                continue
            task, key = kept.task, index_key(kept.task)
            if key is not None and is_eligible(task.queue, task.type, task.needs):
                self._lanes.content(task)
                found += filter(None, [entry_of(key)])
        return found
