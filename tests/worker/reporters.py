"""Handlers that report progress and wait until a test has seen it."""

from pathlib import Path

from qo.running_task import current_task
from tests.conditions import until, wait_until


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
