"""Every layout on a real S3. Requests are slow there, so one random history: other buckets run them all."""

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

EVERY = [f"{layout} {bucket}" for layout in LAYOUTS for bucket in ("plain", "versioned")]
# The layouts `one` and `sqlite` read and replace one object: test_layouts.py runs them on our own S3 server, and
# test_layouts_processes.py runs them on SeaweedFS.
PLACES = EVERY if os.environ.get("QO_TORTURE") else ["tasks versioned"]


@pytest.mark.parametrize("engine", PLACES, indirect=True)
class TestLayoutsOnSeaweed(DamagedLayouts, EngineContract):
    @pytest.fixture
    async def engine(
        self, clock: ManualClock, seaweed: S3Place, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Engine]:
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        layout, bucket = request.param.split()
        engine = LAYOUTS[layout](open_bucket(seaweed.url(bucket, new_token()), clock=clock), clock)
        await engine.open()
        yield engine
        await engine.close()

    @pytest.mark.parametrize("seed", [2])
    async def test_random_histories_are_answered_as_the_model_answers(
        self, engine: Engine, clock: ManualClock, seed: int
    ) -> None:
        await random_history(engine, clock, seed)
