"""Handlers that try to take their worker process with them, and healthy ones beside them. Run by `qo worker`."""

import asyncio
import atexit
import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import qo

app = qo.App()
quick = qo.RetryPolicy(initial=0.05, jitter=0.0)


def declare(function: Any) -> None:
    app.task(timeout=1.0, max_retries=1, retry=quick)(function)


@app.task(timeout=60.0, max_retries=0)
def healthy(n: int) -> int:
    time.sleep(0.1)
    return n


@app.task(timeout=60.0, max_retries=0)
async def ahealthy(n: int) -> int:
    for _ in range(10):
        await asyncio.create_task(asyncio.sleep(0.01))
    return n


def regex() -> None:
    re.match(r"(a+)+$", "a" * 40 + "b")


def c_loop() -> None:
    sum(range(10**13))


def closes_files() -> None:
    os.closerange(3, 4096)


def patches_time() -> None:
    time.time = time.monotonic = lambda: 0.0
    raise ValueError("patched")


def segfaults() -> None:
    ctypes.string_at(0)


def recurses() -> None:
    sys.setrecursionlimit(10**9)
    nested: Any = []
    for _ in range(10**6):
        nested = [nested]
    repr(nested)


class Hanging(Exception):
    def __str__(self) -> str:  # noqa: PLE0307 - it never returns
        while True:
            time.sleep(0.01)


def hangs_in_text() -> None:
    raise Hanging


class Speechless(Exception):
    def __str__(self) -> str:
        raise SystemExit


def exits_in_text() -> None:
    raise Speechless


def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs_at_exit() -> None:
    atexit.register(time.sleep, 3600)
    raise ValueError("registered")


async def stops_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


async def closes_loop() -> None:
    asyncio.get_running_loop().close()


async def cancels_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(1)


async def replaces_factory() -> None:
    asyncio.get_running_loop().set_task_factory(lambda *_, **__: None)  # type: ignore[arg-type]


async def exits_in_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0.1)
    raise ValueError("it went on")


def also_async(function: Callable[[], None]) -> Callable[[], Any]:
    async def run() -> None:
        function()

    run.__name__ = run.__qualname__ = f"a{function.__name__}"
    run.__module__ = function.__module__
    globals()[run.__name__] = run
    return run


PLAIN = (
    regex, c_loop, closes_files, patches_time, segfaults, recurses, hangs_in_text, exits_in_text, stops_itself,
    hangs_at_exit,
)  # fmt: skip
ASYNC = (stops_loop, closes_loop, cancels_all, replaces_factory, exits_in_callback)
KINDS = []
for plain in PLAIN:
    declare(plain)
    declare(also_async(plain))
    KINDS += [plain.__name__, f"a{plain.__name__}"]
for kind in ASYNC:
    declare(kind)
    KINDS.append(kind.__name__)
