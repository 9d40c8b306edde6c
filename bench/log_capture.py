"""What storing the log lines of handlers costs. `python -m bench.log_capture [--tasks N] [--rounds N] [URL]`

Drains the same tasks with and without `capture_logs`, in turns, in one process. Each handler logs one line, which
otherwise goes to a handler that drops it. Prints processor time per task, which includes the fixed cost of the line itself.
The two drains of a round follow each other, so the ratio of each round is free of slow changes of the machine's speed.
"""

import argparse
import asyncio
import logging
import statistics
import tempfile
import time

from qo import App
from qo.client import Client, connect
from qo.codec import encode_value
from qo.worker import Worker, WorkerSettings

app = App()
log = logging.getLogger("shop")
MAX_SUBMIT_SIZE = 1000


@app.task
def send(number: int) -> int:
    log.info("sending %d", number)
    return number


async def drain(client: Client, tasks: int, *, capture_logs: bool) -> float:
    """Microseconds of processor time per task."""
    for first in range(0, tasks, MAX_SUBMIT_SIZE):
        numbers = range(first, min(tasks, first + MAX_SUBMIT_SIZE))
        await client.submit_many([client.new_task(send.handler.type, encode_value({"number": n})) for n in numbers])
    worker = Worker(client, app.registry, WorkerSettings(drain=True, capture_logs=capture_logs))
    began = time.process_time()
    await worker.run()
    return (time.process_time() - began) / tasks * 1e6


async def measure(url: str | None, tasks: int, rounds: int) -> dict[bool, list[float]]:
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for capture_logs in (False, True) if number % 2 == 0 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                async with connect(url or f"sqlite:///{folder}/qo.db") as client:
                    found[capture_logs].append(await drain(client, tasks, capture_logs=capture_logs))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("url", nargs="?", help="an empty store; default: a new SQLite file for each drain")
    options.add_argument("--tasks", type=int, default=5000)
    options.add_argument("--rounds", type=int, default=9)
    given = options.parse_args()
    logging.basicConfig(level=logging.INFO, handlers=[logging.NullHandler()])
    logging.getLogger("qo").setLevel(logging.WARNING)
    found = asyncio.run(measure(given.url, given.tasks, given.rounds))
    for capture_logs, times in found.items():
        print(f"capture_logs={capture_logs}: {' '.join(f'{each:.1f}' for each in times)} µs per task")
        print(f"  median {statistics.median(times):.1f} µs, least {min(times):.1f} µs per task")
    for name, figure in (("median", statistics.median), ("least", min)):
        print(f"{name}: {figure(found[True]) / figure(found[False]) - 1:+.1%}")
    ratios = [captured / plain - 1 for captured, plain in zip(found[True], found[False], strict=True)]
    print(f"of each round: median {statistics.median(ratios):+.1%}, {' '.join(f'{each:+.1%}' for each in ratios)}")


if __name__ == "__main__":
    main()
