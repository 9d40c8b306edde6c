import pytest

from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.testing import EngineContract, ManualClock


class TestMemory(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock) -> MemoryEngine:
        return MemoryEngine(clock)

    async def damage(self, engine: Engine, task_id: str) -> None:
        assert isinstance(engine, MemoryEngine)
        engine.damage(task_id)
