from collections.abc import AsyncIterator

import pytest

from qo.buckets import open_bucket
from qo.engines.one_object import OneObjectEngine
from qo.ids import new_lease_id
from qo.testing import EngineContract, ManualClock
from tests.servers.process import KEYS, S3Place
from tests.servers.seaweed import seaweed

__all__ = ["seaweed"]  # a fixture


@pytest.mark.parametrize("engine", ["plain", "versioned"], indirect=True)
class TestOneObjectOnSeaweed(EngineContract):
    @pytest.fixture
    async def engine(
        self, clock: ManualClock, seaweed: S3Place, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[OneObjectEngine]:
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        engine = OneObjectEngine(open_bucket(seaweed.url(request.param, new_lease_id()), clock=clock), clock=clock)
        await engine.open()
        yield engine
        await engine.close()
