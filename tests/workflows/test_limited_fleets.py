"""Workflows with limits in unusual fleets: no monitor, workers that know only some types, encryption, mode `local`."""

import asyncio
from pathlib import Path

import pytest

import qo
from qo.client import Client
from qo.encryption import Encrypted
from qo.model import WorkflowStatus
from qo.worker import Worker, WorkerSettings
from tests.conditions import TIMEOUT

_CUSTOMERS, _BILLS = 2, 12
_KEY = Encrypted.new_key()


class _Apps:
    """Two apps, each of which knows only some of the types."""

    def __init__(self) -> None:
        self.first, self.second = qo.App("memory://"), qo.App("memory://")
        self.now, self.most = [0] * _CUSTOMERS, 0

        @self.first.task(name="customer")
        def customer(number: int) -> int:
            return number % _CUSTOMERS

        @self.second.task(name="bill", limit=qo.Limit(concurrency=1, key="customer_id"))
        async def bill(customer_id: int, number: int) -> int:
            self.now[customer_id] += 1
            self.most = max(self.most, self.now[customer_id])
            for _ in range(20):
                await asyncio.sleep(0)
            self.now[customer_id] -= 1
            return number

        @self.first.task(name="total")
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        self.customer, self.bill, self.total = customer, bill, total

    def flow(self) -> qo.Workflow:
        """The group of each bill is the result of its parent."""
        flow = self.first.workflow("bills")
        bills = [flow.add(self.bill.s(flow.add(self.customer.s(at)), at)) for at in range(_BILLS)]
        flow.add(self.total.s(bills))
        return flow


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("options", ["sqlite", "layout=tasks", "layout=sqlite&mode=local"])
async def test_workers_that_know_only_some_types_finish_a_limited_workflow_without_a_monitor(
    tmp_path: Path, options: str, *, is_encrypted: bool
) -> None:
    url = f"sqlite:///{tmp_path}/qo.db" if options == "sqlite" else f"file://{tmp_path}/bucket?{options}"
    codec = Encrypted([_KEY]) if is_encrypted else None
    apps = _Apps()
    async with qo.connect(url, codec=codec) as client:
        id = (await client.workflows.submit("bills", apps.flow().planned)).graph.id
        workers = [_worker(client, app) for app in (apps.first, apps.second, apps.second)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            result = await client.workflows.result(id, timeout=TIMEOUT)
        finally:
            for worker in workers:
                worker.stop()
            await asyncio.gather(*running)
        assert result == sum(range(_BILLS))
        assert await client.workflows.status(id) is WorkflowStatus.COMPLETED
    assert apps.most == 1


def _worker(client: Client, app: qo.App) -> Worker:
    return Worker(client, app.registry, WorkerSettings(concurrency=4, poll=0.05))
