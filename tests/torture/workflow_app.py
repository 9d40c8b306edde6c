"""An app for workers that are killed while they run workflows: `qo worker tests.torture.workflow_app:app`."""

import os
import random
from pathlib import Path

import qo
from qo.executors.child_process import in_child
from tests.conditions import delay

app = qo.App()
LOG = Path(os.environ.get("WORKFLOW_LOG", os.devnull))
_SOON = qo.RetryPolicy(initial=0.05, max=0.2)


def write(line: str) -> None:
    """One write of a short line: lines of several processes do not mix, and their order is that of the writes."""
    with LOG.open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def worker() -> int:
    """The worker process. A task whose process was killed runs in a child of the next worker, and dies with it."""
    return os.getppid() if in_child() else os.getpid()


@app.task(max_retries=1000, retry=_SOON)
async def step(flow: int, index: int, results: list[int]) -> int:
    write(f"start {flow} {index} {worker()}")
    await delay(random.uniform(0.0, 0.02))
    write(f"end {flow} {index} {worker()}")
    return result_of(index, results)


def result_of(index: int, results: list[int]) -> int:
    return (index + 1 + 7 * sum(results)) % 1_000_003
