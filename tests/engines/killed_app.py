"""An app for workers that are killed: `qo worker tests.engines.killed_app:app`.

Where a log is named, every third task runs until the process is killed, so that no kill misses. Where SLOW_TASKS is
set, some take up to so many seconds, so that a worker or producer that wakes up late meets them running elsewhere.
"""

import os
import random
from pathlib import Path

import qo
from tests.conditions import delay, forever

app = qo.App()
LOG = Path(os.environ["LOG_OF_THE_KILLED"]) if "LOG_OF_THE_KILLED" in os.environ else None
SLOW = float(os.environ.get("SLOW_TASKS", "0"))
if LOG:
    LOG.touch()  # about to work


@app.task
async def count_up(n: int) -> int:
    if LOG and n % 3 == 0:
        write(LOG, qo.current_task().id)
        await forever()
    if SLOW and random.random() < 0.15:
        await delay(random.uniform(0.0, SLOW))
    return n + 1


def write(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")
