from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.buckets.memory import MemoryBucket
from qo.engines.per_task import IndexMode, Options, PerTaskEngine
from qo.testing import EngineContract, ManualClock
from tests.engines.layout_buckets import BUCKETS

OPTIONS = {
    "index-only": Options(index_mode=IndexMode.INDEX_ONLY),
    "log-scan": Options(index_mode=IndexMode.LOG_SCAN, log_scan_page_size=7),
    "deep": Options(ready_page_size=3),
}


@pytest.mark.parametrize("engine", BUCKETS, indirect=True)
class TestPerTask(EngineContract):
    @pytest.fixture
    async def engine(
        self, clock: ManualClock, tmp_path: Path, request: pytest.FixtureRequest
    ) -> AsyncIterator[PerTaskEngine]:
        async with BUCKETS[request.param](clock, tmp_path) as bucket:
            engine = PerTaskEngine(bucket, clock=clock)
            yield engine
            await engine.close()


@pytest.mark.parametrize("engine", OPTIONS, indirect=True)
class TestOptions(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, request: pytest.FixtureRequest) -> AsyncIterator[PerTaskEngine]:
        engine = PerTaskEngine(MemoryBucket(clock), OPTIONS[request.param], clock=clock)
        await engine.open()
        yield engine
        await engine.close()
