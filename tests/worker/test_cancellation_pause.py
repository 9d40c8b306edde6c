"""How often a worker asks whether its tasks were cancelled."""

from typing import Any

import pytest

from qo.client import Client
from qo.engine import Engine
from qo.engines import open_engine
from qo.forwarding_engine import ForwardingEngine
from qo.hooks import Hooks, WorkerContext
from qo.model import Change, ClaimRequest, Task
from qo.tasks import HandlerOptions, make_handler
from qo.testing import ManualClock
from qo.worker.callbacks import CallbackThread
from qo.worker.cancellation import CancellationWatch
from qo.worker.run import Run
from qo.worker.run_table import LeasedRuns


class Distant(ForwardingEngine):
    """Every call takes 50 ms of the clock."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        super().__init__(engine)
        self._clock = clock

    async def get_without_values(self, ids: Any) -> list[Task | None]:
        if ids:
            self._clock.advance(0.05)
        return await super().get_without_values(ids)

    async def apply(self, changes: Any) -> list[bool]:
        self._clock.advance(0.05)
        return await super().apply(changes)


class Renewals:
    """Takes the place of the lease keeper: renews with one call of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def renew_now(self, runs: list[Run]) -> None:
        changes: list[Change] = []
        if runs:
            await self._engine.apply(changes)


@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_distant_store_is_asked_as_rarely_about_large_tasks_as_about_small_ones(size: int) -> None:
    clock = ManualClock()
    engine = Distant(open_engine("memory://", clock=clock), clock)
    async with Client(engine) as client:
        await client.enqueue("t", "x" * size)
        (task,) = await engine.claim(ClaimRequest(worker_id="w", lease_id="l"))
    run = Run(task, make_handler(lambda: None, type="t", options=HandlerOptions()), lambda *_: None)
    callbacks = CallbackThread(Hooks(), lambda: WorkerContext("w"))
    keeper: Any = Renewals(engine)
    watch = CancellationWatch(engine, LeasedRuns(None), keeper, callbacks, max_interval=20.0, clock=clock)
    assert await watch.check([run]) > 19
