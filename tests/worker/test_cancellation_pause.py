"""How often a worker asks whether its tasks were cancelled."""

from typing import Any

import pytest

from qo.client import Client
from qo.engine import Engine
from qo.engines import open_engine
from qo.executors.run import Run
from qo.executors.run_table import LeasedRuns
from qo.forwarding_engine import ForwardingEngine
from qo.hooks import Hooks, WorkerContext
from qo.model import Change, ClaimRequest, Task
from qo.tasks import HandlerOptions, make_handler
from qo.testing import ManualClock
from qo.worker.callbacks import CallbackThread
from qo.worker.lease_keeper import CancellationWatch


class Delayed(ForwardingEngine):
    """Every call takes `delay` seconds of the clock."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        super().__init__(engine)
        self._clock, self.delay = clock, 0.0

    async def get_without_values(self, ids: Any) -> list[Task | None]:
        if ids:
            self._clock.advance(self.delay)
        return await super().get_without_values(ids)

    async def apply(self, changes: Any) -> list[bool]:
        self._clock.advance(self.delay)
        return await super().apply(changes)


class Renewals:
    """Takes the place of the lease keeper: renews with one call of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def renew_now(self, runs: list[Run]) -> None:
        changes: list[Change] = []
        if runs:
            await self._engine.apply(changes)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def watching(clock: ManualClock, size: int = 10) -> tuple[Delayed, CancellationWatch, list[Run]]:
    """A worker that runs one task."""
    engine = Delayed(open_engine("memory://", clock=clock), clock)
    async with Client(engine) as client:
        await client.enqueue("t", "x" * size)
        (task,) = await engine.claim(ClaimRequest(worker_id="w", lease_id="l"))
    run = Run(task, make_handler(lambda: None, type="t", options=HandlerOptions()), lambda *_: None)
    callbacks = CallbackThread(Hooks(), lambda: WorkerContext("w"))
    keeper: Any = Renewals(engine)
    watch = CancellationWatch(engine, LeasedRuns(None), keeper, callbacks, max_interval=20.0, clock=clock)
    return engine, watch, [run]


@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_distant_store_is_polled_as_rarely_for_large_tasks_as_for_small_ones(
    clock: ManualClock, size: int
) -> None:
    engine, watch, runs = await watching(clock, size)
    engine.delay = 0.05
    assert [await watch.check(runs) for _ in range(8)][-1] > 19


@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_slow_call_on_a_busy_machine_hardly_delays_the_next(clock: ManualClock, size: int) -> None:
    engine, watch, runs = await watching(clock, size)
    pauses = []
    for engine.delay in (0.3, 0.001, 0.001, 0.5, 0.001, 0.001, 2.0, 0.001):  # the first call opens a connection
        pauses.append(await watch.check(runs))
    assert max(pauses) < 1.5 and pauses[-1] == 1.0
