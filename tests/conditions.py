"""Waiting for conditions: the one place where tests poll."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

TIMEOUT = 120.0  # seconds; a loaded machine may be slow
_POLL_INTERVAL, _MAX_POLL_INTERVAL = 0.01, 0.1  # seconds; it grows, because a condition may be expensive


@overload
async def until(
    condition: Callable[Arguments, Awaitable[Value | None]], *args: Arguments.args, **options: Arguments.kwargs
) -> Value: ...
@overload
async def until(
    condition: Callable[Arguments, Value | None], *args: Arguments.args, **options: Arguments.kwargs
) -> Value: ...
async def until(condition: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Wait until `condition(...)`, or what it awaits, is true. Returns that value; raises TimeoutError."""
    interval = _POLL_INTERVAL
    async with asyncio.timeout(TIMEOUT):
        while True:
            value = condition(*args, **options)
            if isawaitable(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(interval)
            interval = min(1.2 * interval, _MAX_POLL_INTERVAL)


def wait_until(
    condition: Callable[Arguments, Value | None], *args: Arguments.args, **options: Arguments.kwargs
) -> Value:
    """As `until`, without an event loop: the calling thread waits."""
    return wait_within(TIMEOUT, lambda: condition(*args, **options))


def wait_within(timeout: float, condition: Callable[[], Value | None]) -> Value:
    """As `wait_until`, for a condition that may take longer than others."""
    interval, deadline = _POLL_INTERVAL, time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true after {timeout:.0f} s, but {value!r}")
        time.sleep(interval)
        interval = min(1.2 * interval, _MAX_POLL_INTERVAL)
    return value


async def forever() -> NoReturn:
    """Never return: only a cancellation ends it."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets this event")


async def delay(seconds: float) -> None:
    """What a slow store or network adds to a call, or a task to its run. Nothing may depend on its length."""
    await asyncio.sleep(seconds)
