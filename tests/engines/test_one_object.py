from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.buckets.memory import MemoryBucket
from qo.engines.one_object import Mode, OneObjectEngine
from qo.testing import EngineContract, ManualClock
from tests.engines.layout_buckets import BUCKETS


@pytest.mark.parametrize("engine", BUCKETS, indirect=True)
class TestOneObject(EngineContract):
    @pytest.fixture
    async def engine(
        self, clock: ManualClock, tmp_path: Path, request: pytest.FixtureRequest
    ) -> AsyncIterator[OneObjectEngine]:
        async with BUCKETS[request.param](clock, tmp_path) as bucket:
            engine = OneObjectEngine(bucket, clock=clock)
            yield engine
            await engine.close()


class TestDirect(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock) -> AsyncIterator[OneObjectEngine]:
        engine = OneObjectEngine(MemoryBucket(clock), mode=Mode.DIRECT, clock=clock)
        await engine.open()
        yield engine
        await engine.close()
