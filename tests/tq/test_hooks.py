"""Hooks of `tq`, whose worker runs in the same process."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from qo.errors import InvalidSetting
from qo.hooks import CallNext, TaskEvent, current_worker
from qo.model import Task
from qo.task_queue import TaskQueue
from tests.conditions import wait_until


@pytest.fixture
def tq() -> Iterator[TaskQueue]:
    queue = TaskQueue()
    queue.init("memory://")
    yield queue
    queue.stop()


def test_middleware_callbacks_and_the_lifespan_belong_to_tq_as_to_an_app(tq: TaskQueue) -> None:
    happened: list[Any] = []

    @tq.lifespan
    async def life() -> AsyncIterator[str]:
        yield "state"
        happened.append("left")

    @tq.middleware
    async def around(_task: Task, call_next: CallNext) -> Any:
        happened.append(current_worker().state)
        return await call_next()

    @tq.on("task_succeeded")
    def succeeded(event: TaskEvent) -> None:
        happened.append(event.task.type)

    tq("crawl").set_worker(happened.append).add(7)
    wait_until(lambda: "crawl" in happened)
    tq.stop()
    assert happened == ["state", 7, "crawl", "left"]


def test_a_lifespan_is_declared_before_the_first_worker(tq: TaskQueue) -> None:
    tq("crawl").set_worker(print)

    async def late() -> AsyncIterator[None]:
        yield

    with pytest.raises(InvalidSetting, match="before the worker starts"):
        tq.lifespan(late)
