"""The bytes of a history in a response, with texts that are longer in JSON than in memory."""

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.model import after_error
from qo.testing.samples import claim_one, new, task_id
from qo.web.http.byte_budget import RESPONSE_BYTES
from tests.web.serving import in_process

ATTEMPTS = 150


@pytest.mark.parametrize("character", ["\x01", "\U0001f600"])
async def test_texts_count_with_the_bytes_of_their_json(character: str) -> None:
    engine = MemoryEngine()
    await engine.add([new(0, max_retries=1000)])
    text = character * 16_000
    for _ in range(ATTEMPTS):
        await engine.apply([after_error(await claim_one(engine), text, random=0.0, after=0.0, log=text)])
    async with in_process(Client(engine)) as http:
        for path, parts in (("/api/v1/tasks", 1), ("/api/v1/dashboard/tasks", 2)):  # the second has tasks beside events
            answer = await http.get(f"{path}/{task_id(0)}/history")
            assert len(answer.json()["events"]) == 1 + 2 * ATTEMPTS
            assert len(answer.content) < parts * (RESPONSE_BYTES + 2 * ATTEMPTS * 2048)
            assert character in answer.json()["events"][-1]["log"]
