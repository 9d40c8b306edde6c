"""A worker in any language, which knows the paths of the worker protocol."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from qo.client import Client
from qo.model import Task
from tests.engines.http_server import Server
from tests.servers.plain_http import NO_CERTIFICATES


class HttpWorker:
    """A worker in any language: it knows the paths and nothing of qo."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.id = ""

    async def register(self, **body: Any) -> dict[str, Any]:
        registered: dict[str, Any] = await self.post("register", {"capabilities": [], "capacity": 5} | body)
        self.id = registered["worker_id"]
        return registered

    async def post(self, path: str, body: Any, *, status: int = 200) -> Any:
        response = await self.http.post(f"/internal/workers/{path}", json=body)
        assert response.status_code == status, response.text
        return response.json()

    async def poll(self, capacity: int = 3, **body: Any) -> list[dict[str, Any]]:
        polled = await self.post(f"{self.id}/poll", {"capabilities": [], "available_capacity": capacity} | body)
        tasks: list[dict[str, Any]] = polled["tasks"]
        return tasks

    async def tell(self, task: dict[str, Any], *, answer: int = 200, **body: Any) -> Any:
        told = {"task_id": task["task_id"], "lease_token": task["lease_token"]} | body
        return await self.post(f"{self.id}/result", told, status=answer)


@pytest.fixture
async def worker(served: Server, client: Client) -> AsyncIterator[HttpWorker]:  # noqa: ARG001 - what is served
    async with httpx.AsyncClient(base_url=served.url, timeout=30, verify=NO_CERTIFICATES) as http:
        registered = HttpWorker(http)
        await registered.register()
        yield registered


async def stored(client: Client, task: dict[str, Any]) -> Task:
    found = await client.get(task["task_id"])
    assert found is not None
    return found
