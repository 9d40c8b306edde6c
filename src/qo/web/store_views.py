"""Counts and ages for each part of the store that callers are limited to. Callers with the same limits share them."""

from collections import OrderedDict

from msgspec import Struct

from qo.clock import Clock
from qo.engine import Engine
from qo.web.callers import WHOLE_STORE, AccessLimits
from qo.web.stats.oldest_tasks import OldestTasks
from qo.web.stats.sampler import Sampler

_MAX_VIEWS = 64  # different limits remembered at once


class StoreView(Struct, frozen=True, kw_only=True):
    sampler: Sampler
    oldest: OldestTasks


class StoreViews:
    def __init__(self, engine: Engine, *, interval: float, clock: Clock) -> None:
        self._engine, self._interval, self._clock = engine, interval, clock
        self.whole = self._new(WHOLE_STORE)
        self._limited: OrderedDict[AccessLimits, StoreView] = OrderedDict()

    def of(self, limits: AccessLimits) -> StoreView:
        if limits.is_whole:
            return self.whole
        view = self._limited.get(limits)
        if view is None:
            view = self._limited[limits] = self._new(limits)
            if len(self._limited) > _MAX_VIEWS:
                self._limited.popitem(last=False)
        self._limited.move_to_end(limits)
        return view

    async def finish(self) -> None:
        for view in (self.whole, *self._limited.values()):
            await view.sampler.finish()

    def _new(self, limits: AccessLimits) -> StoreView:
        return StoreView(
            sampler=Sampler(self._engine, interval=self._interval, clock=self._clock, limits=limits),
            oldest=OldestTasks(self._engine, limits),
        )
