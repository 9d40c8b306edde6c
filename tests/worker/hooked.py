"""Hooks at the top of a module, where a child process can find them; the bad ones are bad on purpose."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from qo.hooks import CallNext, current_worker
from qo.model import Task

never = threading.Event()
seen: ContextVar[str] = ContextVar("seen", default="nothing")


class Pool:
    """Stands for an async pool: it works only on the event loop that opened it."""

    def __init__(self) -> None:
        self.loop, self.is_open = asyncio.get_running_loop(), True

    async def fetch(self) -> int:
        assert self.is_open
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return os.getpid()


def _record(event: str) -> None:
    if path := os.environ.get("QO_TEST_RECORD"):
        with Path(path).open("a") as file:
            file.write(f"{event} {os.getpid()}\n")


async def pool() -> AsyncIterator[Pool]:
    opened = Pool()
    yield opened
    opened.is_open = False
    _record("closed")


async def tags(task: Task, call_next: CallNext) -> Any:
    seen.set(f"{task.type} {task.attempt}")
    return {"result": await call_next()}


async def fetches(_task: Task, call_next: CallNext) -> Any:
    return [await current_worker().arun(current_worker().state.fetch()), await call_next()]


async def continues(_task: Task, call_next: CallNext) -> Any:
    result = await call_next()
    async with asyncio.timeout(60):  # needs the current task and the running loop
        await asyncio.sleep(0)
    return result


async def raises(task: Task, _call_next: CallNext) -> Any:
    raise ValueError(f"no {task.type}")


async def exits(_task: Task, _call_next: CallNext) -> Any:
    sys.exit(3)


async def exits_at_once(_task: Task, _call_next: CallNext) -> Any:
    os._exit(4)


async def hangs(_task: Task, _call_next: CallNext) -> Any:
    await asyncio.Event().wait()


async def swallows(_task: Task, call_next: CallNext) -> Any:
    try:
        return await call_next()
    except BaseException:  # noqa: BLE001 - as careless code does
        return "swallowed"


async def ahangs() -> None:
    await asyncio.Event().wait()


async def returns_what_it_has() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "half"
    return "all"


def tagged() -> str:
    return seen.get()


async def atagged() -> str:
    await asyncio.sleep(0)
    return seen.get()


def fetch() -> int:
    pool: Pool = current_worker().state
    return current_worker().run(pool.fetch())


async def afetch() -> int:
    fetched: int = await current_worker().state.fetch()
    return fetched


def runs_a_loop() -> str:
    return asyncio.run(atagged())


def hangs_in_a_loop() -> None:
    async def check_often() -> None:
        while not never.is_set():  # an exception raised in a thread needs Python code to run
            await asyncio.sleep(0)

    asyncio.run(check_often())


def swallows_one_exception() -> None:
    async def wait_behind_a_callback() -> None:
        asyncio.get_running_loop().call_soon(_wait)  # the loop logs what a callback raises, and continues
        while not never.is_set():
            await asyncio.sleep(0)

    asyncio.run(wait_behind_a_callback())


def cleans_up() -> None:
    try:
        _wait()
    finally:
        for _ in range(50):
            never.wait(0.01)
        _record("cleaned up")


def _wait() -> None:
    while not never.wait(0.01):
        pass


def bad() -> None:
    raise ValueError("bad")
