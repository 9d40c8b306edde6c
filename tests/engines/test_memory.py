import pytest

from qo.engines.memory import MemoryEngine
from qo.testing import EngineContract, ManualClock


class TestMemory(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock) -> MemoryEngine:
        return MemoryEngine(clock)
