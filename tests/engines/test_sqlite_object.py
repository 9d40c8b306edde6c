from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.buckets.memory import MemoryBucket
from qo.engines.sqlite_object import Mode, SqliteObjectEngine
from qo.testing import EngineContract, ManualClock
from tests.engines.layout_buckets import BUCKETS


@pytest.mark.parametrize("engine", BUCKETS, indirect=True)
class TestSqliteObject(EngineContract):
    @pytest.fixture
    async def engine(
        self, clock: ManualClock, tmp_path: Path, request: pytest.FixtureRequest
    ) -> AsyncIterator[SqliteObjectEngine]:
        async with BUCKETS[request.param](clock, tmp_path) as bucket:
            engine = SqliteObjectEngine(bucket, clock=clock)
            yield engine
            await engine.close()


class TestLocal(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock) -> AsyncIterator[SqliteObjectEngine]:
        engine = SqliteObjectEngine(MemoryBucket(clock), mode=Mode.LOCAL, clock=clock)
        await engine.open()
        yield engine
        await engine.close()
