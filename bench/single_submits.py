"""Single submits from plain code, in turns with Huey: `python -m bench.single_submits HUEY_PYTHON STORE`.

HUEY_PYTHON is the interpreter of an environment with Huey (`sh bench/setup_envs.sh E huey`). STORE is a folder for two
SQLite files, on a disk for the rate or in /dev/shm for the processor time without that of the disk, or the URL of a
Redis server, on which both sides use the databases 14 and 15 and empty them. Each side is a process of its own, and only
one of them runs at a time. Printed are, for each side, the medians over all rounds of the time and the processor time of
one submit, what qo reaches of Huey's rate by these medians, and the median and the quartiles of that ratio over the
rounds. `client` submits with `qo.sync`, `app` calls `enqueue` of a decorated function, which also checks the arguments.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import redis

_PRODUCER = """
import sys, time
side, store = sys.argv[1:]
payload = {"payload": "x" * 80}
if side == "client":
    from qo import sync
    client = sync.connect(store).open()
    submit = lambda: client.enqueue("noop", payload)
elif side == "app":
    from qo import App
    app = App(store)
    noop = app.task(name="noop")(lambda payload: None)
    submit = lambda: noop.enqueue(payload)
else:
    from huey import RedisHuey, SqliteHuey
    is_redis = store.startswith("redis:")
    huey = RedisHuey("bench", url=store) if is_redis else SqliteHuey("bench", filename=store)
    noop = huey.task()(lambda payload: None)
    submit = lambda: noop(payload)
for line in sys.stdin:
    times, n = (time.perf_counter(), time.process_time()), int(line)
    for _ in range(n):
        submit()
    print((time.perf_counter() - times[0]) / n, (time.process_time() - times[1]) / n, flush=True)
"""


class Producer:
    def __init__(self, python: str, side: str, store: str) -> None:
        words = [python, "-c", _PRODUCER, side, store]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def submit(self, number: int) -> tuple[float, float]:
        """Seconds and processor seconds of one submit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(number, file=self._process.stdin, flush=True)
        seconds, cpu_seconds = self._process.stdout.readline().split()
        return float(seconds), float(cpu_seconds)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


Rows = list[tuple[float, float]]  # by round: seconds and processor seconds of one submit


def run(producers: dict[str, Producer], rounds: int, submits: int) -> dict[str, Rows]:
    """By side, the figures of each round."""
    for producer in producers.values():
        producer.submit(submits)  # the first ones open the store
    measured: dict[str, Rows] = {side: [] for side in producers}
    for number in range(rounds):
        for side in list(producers)[:: 1 if number % 2 == 0 else -1]:
            measured[side].append(producers[side].submit(submits))
    for producer in producers.values():
        producer.stop()
    return measured


def show(measured: dict[str, Rows]) -> None:
    medians = {
        side: [statistics.median(values) for values in zip(*rows, strict=True)] for side, rows in measured.items()
    }
    huey, huey_cpu = medians["huey"]
    for side, (seconds, cpu_seconds) in medians.items():
        print(f"{side:6} {1e6 * seconds:7.1f} µs {1e6 * cpu_seconds:7.1f} µs of processor time", end="")
        ratios = [theirs[0] / ours[0] for ours, theirs in zip(measured[side], measured["huey"], strict=True)]
        quarter, half, three_quarters = statistics.quantiles(ratios, n=4)
        print(
            f"   {huey / seconds:.2f} of the rate of Huey, {huey_cpu / cpu_seconds:.2f} by processor time;"
            f" by rounds {half:.2f} ({quarter:.2f} to {three_quarters:.2f})"
            if side != "huey"
            else ""
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("huey")
    parser.add_argument("store")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--submits", type=int, default=200)
    options = parser.parse_args()
    is_redis = options.store.startswith("redis:")
    with tempfile.TemporaryDirectory(dir=None if is_redis else options.store) as folder:
        ours, theirs = (f"{options.store.rstrip('/')}/{number}" for number in (14, 15))
        if is_redis:
            for url in (ours, theirs):
                with redis.Redis.from_url(url) as server:
                    server.flushdb()
        producers = {
            "client": Producer(sys.executable, "client", ours if is_redis else f"sqlite:///{folder}/client.db"),
            "app": Producer(sys.executable, "app", ours if is_redis else f"sqlite:///{folder}/app.db"),
            "huey": Producer(options.huey, "huey", theirs if is_redis else str(Path(folder, "huey.db"))),
        }
        show(run(producers, options.rounds, options.submits))


if __name__ == "__main__":
    main()
