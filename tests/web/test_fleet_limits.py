"""Limits across all workers over /api/v1."""

from typing import Any

import msgspec
import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.fleet_limits.limit_state import Holder, LimitState
from qo.fleet_limits.rules import state_note
from qo.model import ANY
from qo.testing.samples import task_id
from tests.web.serving import in_process

V1 = "/api/v1/limits"


@pytest.fixture
def client() -> Client:
    return Client(MemoryEngine())


async def test_a_limit_is_set_shown_with_its_holders_and_removed(client: Client) -> None:
    async with in_process(client) as api:
        assert (await api.get(V1)).json() == {"limits": []}
        state = LimitState(scope="type:crawl", holders={"": {task_id(0): Holder(1, "w1", 5.0)}})
        await client.engine.write_note(state_note("type:crawl"), msgspec.json.encode(state), expected=ANY)
        (shown,) = (await api.post(V1, json={"type": "crawl", "concurrency": 5})).json()["limits"]
        holder = {"task_id": task_id(0), "worker_id": "w1", "since": "1970-01-01T00:00:05.000Z"}
        assert shown == {
            "scope": "type:crawl",
            "concurrency": 5,
            "rate": 0.0,
            "per": 1.0,
            "key": None,
            "is_live": True,
            "waiting": 0,
            "groups": [
                {
                    "group": "",
                    "name": "",
                    "type": "crawl",
                    "running": 1,
                    "concurrency": 5,
                    "rate": 0.0,
                    "per": 1.0,
                    "next_start_at": None,
                    "waiting": 0,
                    "waits_for": [],
                    "holders": [holder],
                }
            ],
            "group_count": 1,
            "is_exact": True,
        }
        limits = (await api.post(V1, json={"key": "customer=42", "rate": 100, "per": 60})).json()["limits"]
        assert [limit["scope"] for limit in limits] == ["type:crawl", "key:customer=42"]
        assert (await api.get("/api/v1/controls")).json()["fleet"]["key:customer=42"]["rate"] == 100.0
        limits = (await api.post(V1, json={"type": "crawl", "remove": True})).json()["limits"]
        assert [limit["scope"] for limit in limits] == ["key:customer=42"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"concurrency": 5},
        {"type": "a", "queue": "b", "concurrency": 5},
        {"type": "a", "concurrency": -1},
        {"type": "a", "concurrency": 0},
        {"type": "a"},
        {"type": "a", "rate": -1},
        {"type": "a", "rate": 1, "per": 0},
        {"key": "customer", "concurrency": 1},
        {"key": "customer=\u0007", "concurrency": 1},
        {"type": "a", "nonsense": 1},
    ],
)
async def test_a_bad_limit_is_refused(client: Client, body: dict[str, Any]) -> None:
    async with in_process(client) as api:
        assert (await api.post(V1, json=body)).status_code == 400
        assert (await api.get(V1)).json() == {"limits": []}
