"""Claimable tasks, read off the index: which there are, in order, and when the next will be.

While the queue is small one request tells everything. A deep one is read shard by shard, as far as needed, and what was
read serves the claims of the next second; what this process writes itself is added at once.
"""

import asyncio
from collections import OrderedDict
from functools import partial
from typing import TypeAlias

from qo.engines.object_per_task.keys import LATER, READY, SHARDS, Entry, KeyKind, lane_of
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.listed_entries import ListedEntries
from qo.engines.object_per_task.options import TasksOptions
from qo.engines.object_per_task.promoted import Promoted
from qo.engines.parallel import in_parallel
from qo.ids import luck
from qo.model import ClaimRequest, eligibility, eligible, in_order

_FRESH = 1.0  # seconds
_MOST_READ = 8000  # entries of each shard one claim looks at; the next claim goes on from there
_FEW = 2  # shards a worker in a crowd looks at, if they hold
_PLENTY = 16  # times as many as it wants
_MOST_LATER = 16  # pages
_MOST_SWEEPS = 8

Wish: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]


class Sweep:
    """One way through the shards, for one kind of want."""

    def __init__(self, now: float, shards: str, entries: ListedEntries) -> None:
        self.began, self.began_really = now, asyncio.get_running_loop().time()
        self.is_new = True
        self.entries = entries
        self.cursors: dict[str, str] = dict.fromkeys(shards, "")  # shards read to their end are left out
        self.turn = asyncio.Lock()  # claims of one process share it
        first = int(luck() * len(shards))
        self.order = shards[first:] + shards[:first]  # another one for every sweep and every worker

    def is_fresh(self, now: float) -> bool:
        return now - self.began < _FRESH and asyncio.get_running_loop().time() - self.began_really < _FRESH


class Ready:
    def __init__(self, store: TasksLayout, options: TasksOptions) -> None:
        self._index, self._lanes, self._clock = store.index, store.lanes, store.clock
        self._page, self._shards = options.ready_page_size, "".join(options.shards) or SHARDS
        self._promoted = Promoted(store.index, interval=options.promotion_interval, max_read=_MOST_READ)
        self._sweeps: OrderedDict[Wish, Sweep] = OrderedDict()
        self.next_at: float | None = None  # when the first task that is not due will be, as far as known
        store.index.on_write = self._hear

    async def candidates(
        self, request: ClaimRequest, *, number: int | None = None, roughly: bool = False
    ) -> list[Entry]:
        """Entries of due tasks this worker may take, first come first. Roughly so in a crowd, and from fewer shards.

        `number`: a deep queue shows no more than these.
        """
        now = self._clock()
        wish = (request.queues, request.types, request.capabilities)
        sweep = self._under_way(wish, now)
        if sweep is None:
            if not self._is_deep(wish):
                page = await self._index.read(READY, most=self._page, until=lambda entry: entry.at > now)
                if not page.is_full:
                    self._sweeps.clear()
                    self.next_at = page.stopped_at.at if page.stopped_at else None
                    return in_order(await self._wanted(page.entries, request), now, lane_of)
            sweep = self._begin(wish, now)
        async with sweep.turn:
            reading = [partial(self._fill, sweep, request, roughly=roughly)]
            if sweep.is_new:
                reading.append(partial(self._read_later, sweep, request, now))
                reading.append(partial(self._read_promoted, sweep, request, now))
            await in_parallel(lambda read: read(), reading)
            sweep.is_new = False
        return sweep.entries.all_due(now) if number is None else sweep.entries.first_due(request, now, number)

    async def _wanted(self, entries: list[Entry], request: ClaimRequest) -> list[Entry]:
        await self._lanes.learn(entries)
        takes = eligibility(request)
        return [
            entry
            for entry in entries
            if entry.id[0] in self._shards
            and (names := self._lanes.names(entry)) is not None
            and takes(names.queue, names.type, names.needs)
        ]

    # --- when one page is not enough

    async def _fill(self, sweep: Sweep, request: ClaimRequest, *, roughly: bool) -> None:
        for _ in range(max(1, _MOST_READ // self._page)):
            thin = self._thin(sweep, request)
            if roughly:
                thin = thin[:_FEW] if sweep.entries.count_believable() < _PLENTY * request.limit else []
            if not thin:
                return
            await in_parallel(lambda shard: self._advance(sweep, shard, request), thin)

    def _under_way(self, wish: Wish, now: float) -> Sweep | None:
        """The sweep that is still good. One that has found nothing yet goes on, however old, or it never would."""
        sweep = self._sweeps.get(wish)
        if sweep is None:
            return None
        searching = bool(sweep.cursors) and not sweep.entries
        return sweep if searching or (sweep.is_fresh(now) and sweep.entries.has_believable()) else None

    def _begin(self, wish: Wish, now: float) -> Sweep:
        """Every sweep starts at the prefix."""
        self._sweeps[wish] = sweep = Sweep(now, self._shards, ListedEntries(self._index, self._lanes))
        self._sweeps.move_to_end(wish)
        if len(self._sweeps) > _MOST_SWEEPS:
            self._sweeps.popitem(last=False)
        return sweep

    def _is_deep(self, wish: Wish) -> bool:
        """By what the last sweep saw of the shards it looked at, one page would not tell everything."""
        sweep = self._sweeps.get(wish)
        if sweep is None:
            return False
        seen = len(self._shards) - sum(not cursor for cursor in sweep.cursors.values())
        return sweep.entries.count_believable() * len(self._shards) > 2 * self._page * seen

    def _thin(self, sweep: Sweep, request: ClaimRequest) -> list[str]:
        """Shards that may hold more than was read and have not shown enough: the first `limit` of all are in there."""
        return [
            shard for shard in sweep.order if shard in sweep.cursors and not sweep.entries.has_shown(shard, request)
        ]

    async def _advance(self, sweep: Sweep, shard: str, request: ClaimRequest) -> None:
        page = await self._index.read(f"{READY}{shard}/", after=sweep.cursors[shard], most=self._page)
        sweep.entries.put_listed(shard, await self._wanted(page.entries, request))
        if page.is_full:
            sweep.cursors[shard] = page.last
        else:
            sweep.cursors.pop(shard, None)

    async def _read_later(self, sweep: Sweep, request: ClaimRequest, now: float) -> None:
        """Those due by the end of the sweep. If more came due at once than this reads, the earliest go first."""
        soon, after = now + _FRESH, ""
        for _ in range(_MOST_LATER):
            page = await self._index.read(LATER, after=after, most=self._page, until=lambda entry: entry.at > soon)
            self.next_at = page.stopped_at.at if page.stopped_at else None
            sweep.entries.put(await self._wanted(page.entries, request))
            if not page.is_full:
                break
            after = page.last

    async def _read_promoted(self, sweep: Sweep, request: ClaimRequest, now: float) -> None:
        sweep.entries.put(await self._wanted(await self._promoted.entries(now), request))

    def _hear(self, entry: Entry) -> None:
        """This process wrote an entry: a sweep under way should know it."""
        for (queues, types, capabilities), sweep in self._sweeps.items():
            names = self._lanes.names(entry)
            wanted = ClaimRequest(worker_id="", lease_id="", queues=queues, types=types, capabilities=capabilities)
            ours = entry.kind is not KeyKind.LEASE and entry.id[0] in self._shards
            if ours and names and eligible(wanted, names.queue, names.type, names.needs):
                sweep.entries.put((entry,))
