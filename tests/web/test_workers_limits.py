"""Workers over HTTP: the server applies the limits of the fleet when it hands tasks out."""

from typing import Any

from qo.client import Client
from qo.model import Limit, Status
from tests.conditions import until
from tests.web.http_worker import HttpWorker, worker

__all__ = ["worker"]  # a fixture


async def test_a_worker_gets_no_more_tasks_of_a_value_than_its_limit(worker: HttpWorker, client: Client) -> None:
    await client.controls.limit_fleet("key:customer=1", Limit(concurrency=2))
    for customer in (1, 1, 1, 1, 2):
        await client.enqueue("charge", {"customer": customer}, fair_by="customer")
    first = await worker.poll(10)
    assert sorted(task["parameters"]["customer"] for task in first) == [1, 1, 2]
    assert await worker.poll(10) == []
    mine = [task for task in first if task["parameters"]["customer"] == 1]
    await worker.tell(mine[0], status="completed", result=None)

    async def next_tasks() -> list[dict[str, Any]]:
        return await worker.poll(10)

    assert [task["parameters"]["customer"] for task in await until(next_tasks)] == [1]


async def test_the_limit_of_a_type_holds_for_workers_over_http(worker: HttpWorker, client: Client) -> None:
    await client.controls.limit_fleet("type:crawl", Limit(concurrency=1))
    ids = [(await client.enqueue("crawl")).id for _ in range(3)]
    (task,) = await worker.poll(10)
    assert await worker.poll(10) == []
    waiting = await client.engine.get([task_id for task_id in ids if task_id != task["task_id"]])
    assert [each.status for each in waiting if each is not None] == [Status.PENDING] * 2


async def test_a_poll_gets_only_tasks_whose_starts_are_due(worker: HttpWorker, client: Client) -> None:
    await client.controls.limit_fleet("type:crawl", Limit(rate=100))
    for _ in range(60):
        await client.enqueue("crawl")
    polled = await worker.poll(50, wait=5)
    assert 1 <= len(polled) <= 4  # all instants are within the tolerance of 0.04 s
