"""A queue with handlers and workers on a memory engine, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from qo.arguments import PayloadArguments
from qo.client import Client
from qo.clock import Clock, boot_clock
from qo.model import FINISHED, Status, Task
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Worker, WorkerSettings
from qo.worker.controls import ClaimScope
from tests.conditions import TIMEOUT, until


def claim_ahead(worker: Worker, number: int) -> None:
    """Let it take all tasks for quick ones."""
    worker.prefetch.ahead = lambda: number  # type: ignore[method-assign]
    worker.prefetch.ahead_of = lambda _: number  # type: ignore[method-assign, assignment]


class Bench:
    """A queue and handlers, and workers that run until the test has seen enough."""

    def __init__(self, client: Client) -> None:
        self.client, self.registry = client, Registry()

    def handle(self, function: Callable[..., Any], name: str = "", **options: Any) -> None:
        made = make_options(function, **options)
        self.registry.add(make_handler(function, type=name or function.__name__, options=made))

    def handle_payload(self, function: Callable[..., Any], name: str = "", **options: Any) -> None:
        handler = make_handler(function, type=name or function.__name__, options=make_options(function, **options))
        self.registry.add(
            type(handler)(
                **{f: getattr(handler, f) for f in handler.__struct_fields__}
                | {"arguments": PayloadArguments(function)}
            )
        )

    def scope(self, clock: Clock = boot_clock, **settings: Any) -> ClaimScope:
        handlers = {handler.type: handler for handler in self.registry}
        return ClaimScope(self.client.engine, handlers, WorkerSettings(**settings), worker_id="w", clock=clock)

    @asynccontextmanager
    async def working(self, **settings: Any) -> AsyncIterator[Worker]:
        worker = Worker(self.client, self.registry, WorkerSettings(**{"poll": 0.05, "grace": 5.0} | settings))
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await asyncio.wait_for(running, TIMEOUT)

    async def submit(self, type: str, payload: Any = None, **options: Any) -> str:
        return (await self.client.enqueue(type, {} if payload is None else payload, **options)).id

    async def stored(self, task_id: str) -> Task:
        task = await self.client.get(task_id)
        assert task is not None
        return task

    async def seen(self, task_id: str, condition: Callable[[Task], object]) -> Task:
        """The task once `condition` holds for it."""

        async def found() -> Task | None:
            task = await self.stored(task_id)
            return task if condition(task) else None

        return await until(found)

    async def has_status(self, task_id: str, status: Status) -> Task:
        """The task once it has this status."""
        return await self.seen(task_id, lambda task: task.status is status)

    async def ended(self, task_id: str) -> Task:
        return await self.client.ended(task_id, timeout=TIMEOUT)

    async def run_all(self, ids: list[str], **settings: Any) -> list[Task]:
        async with self.working(**settings):
            tasks = [await self.ended(task_id) for task_id in ids]
        assert all(task.status in FINISHED for task in tasks)
        return tasks
