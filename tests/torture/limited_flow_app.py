"""An app with limits and workflows, for workers that are killed: `qo worker tests.torture.limited_flow_app:app`."""

import os
import random
from pathlib import Path

import qo
from tests.conditions import delay
from tests.torture.workflow_app import worker

app = qo.App()
LOG = Path(os.environ.get("FLOW_LOG", os.devnull))
CUSTOMERS, CHARGES, STEPS = 3, 2, 1  # customers, and the tasks of each that may run at a time
_SOON = qo.RetryPolicy(initial=0.05, max=0.2)


def write(*words: object) -> None:
    """One write of a short line: lines of several processes do not mix, and their order is that of the writes."""
    with LOG.open("ab", buffering=0) as file:
        file.write((" ".join(map(str, words)) + "\n").encode())


async def work(key: str, longest: float) -> None:
    run = f"{worker()}-{random.randrange(10**9)}"
    write("start", key, run)
    try:
        await delay(random.uniform(0.0, longest))
    finally:
        write("end", key, run)


@app.task(max_retries=1000, retry=_SOON, limit=qo.Limit(concurrency=CHARGES, key="customer"))
async def charge(customer: int) -> None:
    await work(f"charge-{customer}", 0.1)


@app.task(max_retries=1000, retry=_SOON)
async def pick(number: int) -> int:
    return number % CUSTOMERS


@app.task(max_retries=1000, retry=_SOON, limit=qo.Limit(concurrency=STEPS, key="customer"))
async def step(customer: int, number: int) -> int:
    await work(f"step-{customer}", 0.05)
    return number


@app.task(max_retries=1000, retry=_SOON)
async def total(numbers: list[int]) -> int:
    return sum(numbers)


def flow(size: int) -> qo.Workflow:
    """The group of each step is the result of its parent."""
    made = app.workflow("limited")
    steps = [made.add(step.s(made.add(pick.s(number)), number)) for number in range(size)]
    made.add(total.s(steps))
    return made
