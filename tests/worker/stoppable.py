"""Handlers that record how they are stopped, and handlers that log. A child process imports this module quickly."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from qo.errors import Cancelled
from qo.model import Task
from qo.running_task import current_task

RECORD = "QO_TEST_CANCELLED"
log = logging.getLogger("shop")


def record(word: str) -> None:
    with Path(os.environ[RECORD]).open("a") as file:
        file.write(f"{word}\n")


async def sleeps() -> None:
    record("started")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        record("CancelledError")
        raise


def waits() -> None:
    record("started")
    event = threading.Event()
    try:
        while not event.wait(0.01):
            pass
    except Cancelled:
        record("Cancelled")
        raise


def ignores() -> None:
    record("started")
    event = threading.Event()
    while True:
        try:
            event.wait(0.01)
        except Cancelled:
            record("Cancelled")


async def alogs() -> None:
    log.warning("attempt %d", current_task().attempt)
    if current_task().attempt == 1:
        raise ValueError("again")


def logs() -> None:
    log.warning("attempt %d", current_task().attempt)
    if current_task().attempt == 1:
        raise ValueError("again")


def dies() -> None:
    log.warning("last words")
    os.kill(os.getpid(), 9)


async def swallows_cancellations(task: Task, call_next: Callable[[], Awaitable[Any]]) -> Any:
    """Middleware that takes a cancellation for an error of the handler."""
    try:
        return await call_next()
    except (asyncio.CancelledError, Cancelled):
        record("swallowed")
        return f"instead of {task.type}"
