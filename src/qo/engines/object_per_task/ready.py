"""Claimable tasks according to the index, in order, and the time of the next one.

One request lists a small queue completely. A deep one is read shard by shard, as far as needed, and the result serves
the claims of the next second. Entries that this process writes are added at once.
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

_SWEEP_LIFETIME = 1.0
_MAX_READ_ENTRIES = 8000  # of each shard per claim; the next claim continues from there
_CONTENDED_SHARDS = 2  # under contention list only 2 shards,
_ENOUGH_FACTOR = 16  # if they hold at least 16 times the requested tasks
_MAX_LATER_PAGES = 16
_MAX_SWEEPS = 8

SweepKey: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]  # queues, types, capabilities


class Sweep:
    """One pass through the shards for one kind of claim request."""

    def __init__(self, now: float, shards: str, entries: ListedEntries) -> None:
        self.began, self.began_on_loop = now, asyncio.get_running_loop().time()
        self.is_new = True
        self.entries = entries
        self.cursors: dict[str, str] = dict.fromkeys(shards, "")  # without shards that are read completely
        self.lock = asyncio.Lock()  # claims of this process share the sweep
        first = int(luck() * len(shards))
        self.order = shards[first:] + shards[:first]  # differs by sweep and worker, to spread the load

    def is_fresh(self, now: float) -> bool:
        return (
            now - self.began < _SWEEP_LIFETIME
            and asyncio.get_running_loop().time() - self.began_on_loop < _SWEEP_LIFETIME
        )


class Ready:
    def __init__(self, store: TasksLayout, options: TasksOptions) -> None:
        self._index, self._lanes, self._clock = store.index, store.lanes, store.clock
        self._page_size, self._shards = options.ready_page_size, "".join(options.shards) or SHARDS
        self._promoted = Promoted(store.index, interval=options.promotion_interval, max_read=_MAX_READ_ENTRIES)
        self._sweeps: OrderedDict[SweepKey, Sweep] = OrderedDict()
        self.next_at: float | None = None  # when the next task becomes due, as far as known
        store.index.on_write = self._add_written

    async def candidates(
        self, request: ClaimRequest, *, number: int | None = None, approximate: bool = False
    ) -> list[Entry]:
        """Entries of due tasks that the request may claim, in order. `approximate`: reads fewer shards.

        In a deep queue at most `number` entries are returned.
        """
        now = self._clock()
        key = (request.queues, request.types, request.capabilities)
        sweep = self._current_sweep(key, now)
        if sweep is None:
            if not self._is_deep(key):
                page = await self._index.read(READY, limit=self._page_size, until=lambda entry: entry.at > now)
                if not page.is_full:
                    self._sweeps.clear()
                    self.next_at = page.stopped_at.at if page.stopped_at else None
                    return in_order(await self._matching(page.entries, request), now, lane_of)
            sweep = self._begin(key, now)
        async with sweep.lock:
            reading = [partial(self._fill, sweep, request, approximate=approximate)]
            if sweep.is_new:
                reading.append(partial(self._read_later, sweep, request, now))
                reading.append(partial(self._read_promoted, sweep, request, now))
            await in_parallel(lambda read: read(), reading)
            sweep.is_new = False
        return sweep.entries.all_due(now) if number is None else sweep.entries.first_due(request, now, number)

    async def _matching(self, entries: list[Entry], request: ClaimRequest) -> list[Entry]:
        await self._lanes.learn(entries)
        may_take = eligibility(request)
        return [
            entry
            for entry in entries
            if entry.id[0] in self._shards
            and (names := self._lanes.names(entry)) is not None
            and may_take(names.queue, names.type, names.needs)
        ]

    # --- deep queues

    async def _fill(self, sweep: Sweep, request: ClaimRequest, *, approximate: bool) -> None:
        for _ in range(max(1, _MAX_READ_ENTRIES // self._page_size)):
            shards = self._shards_to_read(sweep, request)
            if approximate:
                has_enough = sweep.entries.count_usable() >= _ENOUGH_FACTOR * request.limit
                shards = [] if has_enough else shards[:_CONTENDED_SHARDS]
            if not shards:
                return
            await in_parallel(lambda shard: self._advance(sweep, shard, request), shards)

    def _current_sweep(self, key: SweepKey, now: float) -> Sweep | None:
        """The sweep to use. One that has found nothing yet continues, whatever its age, so that it makes progress."""
        sweep = self._sweeps.get(key)
        if sweep is None:
            return None
        searching = bool(sweep.cursors) and not sweep.entries
        return sweep if searching or (sweep.is_fresh(now) and sweep.entries.has_usable()) else None

    def _begin(self, key: SweepKey, now: float) -> Sweep:
        self._sweeps[key] = sweep = Sweep(now, self._shards, ListedEntries(self._index, self._lanes))
        self._sweeps.move_to_end(key)
        if len(self._sweeps) > _MAX_SWEEPS:
            self._sweeps.popitem(last=False)
        return sweep

    def _is_deep(self, key: SweepKey) -> bool:
        """Whether the last sweep suggests that one page cannot hold the whole queue."""
        sweep = self._sweeps.get(key)
        if sweep is None:
            return False
        seen = len(self._shards) - sum(not cursor for cursor in sweep.cursors.values())
        return sweep.entries.count_usable() * len(self._shards) > 2 * self._page_size * seen

    def _shards_to_read(self, sweep: Sweep, request: ClaimRequest) -> list[str]:
        """Shards with unread entries whose listed ones cannot satisfy the request on their own."""
        return [
            shard for shard in sweep.order if shard in sweep.cursors and not sweep.entries.has_shown(shard, request)
        ]

    async def _advance(self, sweep: Sweep, shard: str, request: ClaimRequest) -> None:
        page = await self._index.read(f"{READY}{shard}/", after=sweep.cursors[shard], limit=self._page_size)
        sweep.entries.put_listed(shard, await self._matching(page.entries, request))
        if page.is_full:
            sweep.cursors[shard] = page.last
        else:
            sweep.cursors.pop(shard, None)

    async def _read_later(self, sweep: Sweep, request: ClaimRequest, now: float) -> None:
        """Read tasks that become due during the sweep. If there are too many, the earliest are read first."""
        soon, after = now + _SWEEP_LIFETIME, ""
        for _ in range(_MAX_LATER_PAGES):
            page = await self._index.read(
                LATER, after=after, limit=self._page_size, until=lambda entry: entry.at > soon
            )
            self.next_at = page.stopped_at.at if page.stopped_at else None
            sweep.entries.put(await self._matching(page.entries, request))
            if not page.is_full:
                break
            after = page.last

    async def _read_promoted(self, sweep: Sweep, request: ClaimRequest, now: float) -> None:
        sweep.entries.put(await self._matching(await self._promoted.entries(now), request))

    def _add_written(self, entry: Entry) -> None:
        """Add an entry that this process has written to the current sweeps."""
        for (queues, types, capabilities), sweep in self._sweeps.items():
            names = self._lanes.names(entry)
            request = ClaimRequest(worker_id="", lease_id="", queues=queues, types=types, capabilities=capabilities)
            is_claimable = entry.kind is not KeyKind.LEASE and entry.id[0] in self._shards
            if is_claimable and names and eligible(request, names.queue, names.type, names.needs):
                sweep.entries.put((entry,))
