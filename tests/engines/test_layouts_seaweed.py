"""Layouts on a real S3. Requests are slow there, so `make test` runs one random history on each."""

import os
from collections.abc import AsyncIterator

import pytest

from qo.buckets import open_bucket
from qo.engine import Engine
from qo.ids import new_token
from qo.testing import EngineContract, ManualClock, random_history
from tests.engines.damage import DamagedLayouts
from tests.engines.layouts import LAYOUTS
from tests.servers.process import KEYS, S3Place


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(
    clock: ManualClock, seaweed: S3Place, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Engine]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    layout, bucket = request.param.split()
    engine = LAYOUTS[layout](open_bucket(seaweed.url(bucket, new_token()), clock=clock), clock)
    await engine.open()
    yield engine
    await engine.close()


# The layouts `one` and `sqlite` make the same requests.
@pytest.mark.parametrize("engine", ["tasks versioned", "one plain", "log plain"], indirect=True)
async def test_a_random_history_is_answered_as_the_model_answers(engine: Engine, clock: ManualClock) -> None:
    await random_history(engine, clock, 2)


# In `make test`, test_layouts.py runs the contract with the same client on our own S3 server, and test_cloud.py runs
# the contract of buckets on this server.
if os.environ.get("QO_TORTURE"):

    @pytest.mark.parametrize(
        "engine", [f"{layout} {bucket}" for layout in LAYOUTS for bucket in ("plain", "versioned")], indirect=True
    )
    class TestLayoutsOnSeaweed(DamagedLayouts, EngineContract):
        @pytest.mark.parametrize("seed", [2])
        async def test_random_histories_are_answered_as_the_model_answers(
            self, engine: Engine, clock: ManualClock, seed: int
        ) -> None:
            await random_history(engine, clock, seed)
