import pytest

from qo.engine import Engine
from qo.engines import hide_password
from qo.engines.memory import MemoryEngine
from qo.testing import EngineContract, ManualClock


class TestMemory(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock) -> MemoryEngine:
        return MemoryEngine(clock)

    async def damage(self, engine: Engine, task_id: str) -> None:
        assert isinstance(engine, MemoryEngine)
        engine.damage(task_id)


def test_no_password_in_a_url_is_shown() -> None:
    shown = hide_password("redis://me:one@h/0?archive=postgresql://you:two@h2/db")
    assert shown == "redis://me:***@h/0?archive=postgresql://you:***@h2/db"
    assert hide_password("postgresql://h/db?password=x&user=y") == "postgresql://h/db?password=***&user=y"
    assert hide_password("sqlite:////tmp/a:b@c.db") == "sqlite:////tmp/a:b@c.db"
