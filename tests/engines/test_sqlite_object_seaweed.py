from collections.abc import AsyncIterator

import pytest

from qo.buckets import open_bucket
from qo.engine import Engine
from qo.engines.sqlite_object import SqliteObjectEngine
from qo.ids import new_lease_id
from qo.testing import EngineContract, ManualClock, random_history
from tests.servers.process import KEYS, S3Place
from tests.servers.seaweed import seaweed

__all__ = ["seaweed"]  # a fixture


@pytest.mark.parametrize("engine", ["plain", "versioned"], indirect=True)
class TestSqliteObjectOnSeaweed(EngineContract):
    @pytest.fixture
    async def engine(
        self, clock: ManualClock, seaweed: S3Place, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[SqliteObjectEngine]:
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        engine = SqliteObjectEngine(open_bucket(seaweed.url(request.param, new_lease_id()), clock=clock), clock=clock)
        await engine.open()
        yield engine
        await engine.close()

    @pytest.mark.parametrize("seed", range(2))  # each takes seconds here
    async def test_random_histories_are_answered_as_the_model_answers(
        self, engine: Engine, clock: ManualClock, seed: int
    ) -> None:
        await random_history(engine, clock, seed)
