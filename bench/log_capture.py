"""What storing the log lines of handlers costs. `python -m bench.log_capture [--tasks N] [--rounds N] [URL]`

Drains the same tasks with and without `capture_logs`, in turns, in one process. Each handler logs one line, which
otherwise goes to a handler that drops it, so the cost is compared with the cheapest logging there is.

The figure is processor time per task. On a virtual machine it changes by a fifth from one tenth of a second to the next,
so the drains are short, many, and in turns, and the figure is the median over all rounds with its 95 % confidence
interval. What a drain of no tasks takes is subtracted.
"""

import argparse
import asyncio
import logging
import math
import statistics
import tempfile
import time
from collections.abc import Iterable

from qo import App
from qo.client import Client, connect
from qo.codec import encode_value
from qo.worker import Worker, WorkerSettings

app = App()
log = logging.getLogger("shop")
MAX_SUBMIT_SIZE = 1000
IDLE_EVERY = 10  # rounds between two drains of no tasks


@app.task
def send(number: int) -> int:
    log.info("sending %d", number)
    return number


async def drain(client: Client, tasks: int, *, capture_logs: bool) -> float:
    """Microseconds of processor time."""
    for first in range(0, tasks, MAX_SUBMIT_SIZE):
        numbers = range(first, min(tasks, first + MAX_SUBMIT_SIZE))
        await client.submit_many([client.new_task(send.handler.type, encode_value({"number": n})) for n in numbers])
    worker = Worker(client, app.registry, WorkerSettings(drain=True, capture_logs=capture_logs))
    began = time.process_time()
    await worker.run()
    return (time.process_time() - began) * 1e6


async def drain_alone(url: str | None, tasks: int, *, capture_logs: bool) -> float:
    """As `drain`, in a new SQLite file unless there is a URL."""
    with tempfile.TemporaryDirectory() as folder:
        async with connect(url or f"sqlite:///{folder}/qo.db") as client:
            return await drain(client, tasks, capture_logs=capture_logs)


async def measure(url: str | None, tasks: int, rounds: int) -> dict[bool, list[float]]:
    """Microseconds of processor time per task in each round, by `capture_logs`."""
    found: dict[bool, list[float]] = {False: [], True: []}
    idle = []
    for number in range(-1, rounds):  # the first round warms up
        if number % IDLE_EVERY == 0:
            idle.append(await drain_alone(url, 0, capture_logs=False))
        for capture_logs in (False, True) if number % 2 == 0 else (True, False):
            took = await drain_alone(url, tasks, capture_logs=capture_logs)
            if number >= 0:
                found[capture_logs].append(took)
    fixed = statistics.median(idle)
    return {capture_logs: [(each - fixed) / tasks for each in times] for capture_logs, times in found.items()}


def median_interval(values: Iterable[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median: order statistics, without an assumption about the distribution."""
    ordered = sorted(values)
    distance = 0.98 * math.sqrt(len(ordered))
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, math.floor(middle - distance))], ordered[min(len(ordered) - 1, math.ceil(middle + distance))]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("url", nargs="?", help="an empty store; default: a new SQLite file for each drain")
    options.add_argument("--tasks", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=200)
    given = options.parse_args()
    logging.basicConfig(level=logging.INFO, handlers=[logging.NullHandler()])
    logging.getLogger("qo").setLevel(logging.WARNING)
    found = asyncio.run(measure(given.url, given.tasks, given.rounds))
    for capture_logs, times in found.items():
        first, median, third = statistics.quantiles(times, n=4)
        print(f"capture_logs={capture_logs}: median {median:.1f} µs per task, quartiles {first:.1f} and {third:.1f}")
    ratios = [captured / plain - 1 for captured, plain in zip(found[True], found[False], strict=True)]
    first, median, third = statistics.quantiles(ratios, n=4)
    low, high = median_interval(ratios)
    print(
        f"of each round: median {median:+.1%} (95 %: {low:+.1%} to {high:+.1%}), quartiles {first:+.1%} and {third:+.1%}"
    )
    print(f"of the medians: {statistics.median(found[True]) / statistics.median(found[False]) - 1:+.1%}")


if __name__ == "__main__":
    main()
