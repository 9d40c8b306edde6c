"""Waiting for conditions: the one place where tests poll."""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, ParamSpec, TypeVar, overload

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

TIMEOUT = 100.0  # seconds; a loaded machine may be slow
_POLL_INTERVAL = 0.01  # seconds


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
    async with asyncio.timeout(TIMEOUT):
        while True:
            value = condition(*args, **options)
            if isawaitable(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(_POLL_INTERVAL)
