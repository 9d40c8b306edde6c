"""Few pages of tasks are read from a store at once, and nothing shorter waits for them."""

import asyncio
from typing import Any

from qo import wire
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.model import Filter, Task
from qo.testing.samples import new, task_id
from tests.conditions import TIMEOUT
from tests.web.serving import in_process


class SlowPages(MemoryEngine):
    """Reads pages of named types while `gate` is open, and counts how many are read at once."""

    at_once = most = 0

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def find(self, where: Filter, **more: Any) -> list[Task]:
        if where.types:  # not one of the server's own reads
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await self.gate.wait()
            await asyncio.sleep(0)
            self.at_once -= 1
        if where.types == ("broken",):
            raise StorageError("cannot be read")
        return await super().find(where, **more)


async def test_few_pages_are_read_at_once_and_a_failed_read_frees_its_turn() -> None:
    engine = SlowPages()
    engine.gate.set()
    async with in_process(Client(engine)) as http:
        pages = [http.get("/api/v1/tasks", params={"type": ("fine", "broken")[n % 2]}) for n in range(40)]
        assert [answer.status_code for answer in await asyncio.gather(*pages)] == [200, 503] * 20
    assert 1 < engine.most <= 4


async def test_a_single_task_is_read_while_all_turns_are_taken() -> None:
    engine = SlowPages()
    await engine.add([new(1)])
    async with in_process(Client(engine)) as http:
        pages = [asyncio.create_task(http.get("/api/v1/tasks", params={"type": "fine"})) for _ in range(8)]
        kind = {"content-type": wire.MEDIA_TYPE}
        body = wire.encode([task_id(1)])
        try:
            while engine.at_once < 4:
                await asyncio.sleep(0)
            answer = await asyncio.wait_for(http.post(f"{wire.PATH}/get", content=body, headers=kind), TIMEOUT)
            assert answer.status_code == 200 and engine.at_once == 4
        finally:
            engine.gate.set()
            await asyncio.gather(*pages)
