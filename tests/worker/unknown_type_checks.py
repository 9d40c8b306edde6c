"""What the tests of unknown types share."""

from collections.abc import AsyncIterator

import pytest

from qo.client import Client
from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.store_time import StoreTime
from qo.testing.clock import ManualClock
from qo.worker import WorkerSettings
from qo.worker.controls import ClaimScope
from qo.worker.registration import Registration
from qo.worker.unknown_types import UnknownTypes
from tests.worker.bench import Bench


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def timed(clock: ManualClock) -> AsyncIterator[Bench]:
    """A bench whose store has a clock that the test moves."""
    async with Client(MemoryEngine(clock)) as client:
        yield Bench(client)


def unknown_types(
    bench: Bench,
    clock: ManualClock,
    fail_after: float | None = None,
    *,
    engine: Engine | None = None,
    scope: ClaimScope | None = None,
) -> UnknownTypes:
    engine = engine or bench.client.engine
    return UnknownTypes(
        engine,
        scope or bench.scope(),
        Registration(engine, WorkerSettings(), ("known",), clock),
        bench.client.transitions,
        fail_after=fail_after,
        clock=clock,
        store_time=StoreTime(engine, clock),
    )
