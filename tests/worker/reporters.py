"""Handlers that report or log, and wait until a test or another handler has seen it."""

import logging
import os
import threading
from contextvars import copy_context
from pathlib import Path

from qo.running_task import current_task
from tests.conditions import until, wait_until

log = logging.getLogger("shop")


def report(path: str) -> str:
    current_task().progress(0.25, "resizing\nimages")
    wait_until(Path(path).exists)
    current_task().progress(1, "done")
    return "reported"


async def areport(path: str) -> str:
    current_task().progress(0.25, "resizing\nimages")
    await until(Path(path).exists)
    current_task().progress(1)
    return "reported"


def leaves_a_logger(folder: str) -> None:
    """Start a thread that logs during the next task of this process."""
    context = copy_context()

    def logs_late() -> None:
        wait_until((Path(folder) / "next").exists)
        log.warning("of the first task")
        (Path(folder) / "logged").touch()

    threading.Thread(target=context.run, args=(logs_late,), daemon=True).start()


def waits_for_the_logger(folder: str) -> int:
    log.warning("of the second task")
    (Path(folder) / "next").touch()
    wait_until((Path(folder) / "logged").exists)
    return os.getpid()
