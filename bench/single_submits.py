"""Single submits from plain code on SQLite, in turns with Huey: `python -m bench.single_submits HUEY_PYTHON FOLDER`.

HUEY_PYTHON is the interpreter of an environment with Huey (`sh bench/setup_envs.sh E huey`), FOLDER the place of both
databases: on a disk for the rate, in /dev/shm for the processor time without that of the disk. Each side is a process
of its own, and only one of them runs at a time. Printed are, for each side, the medians over all rounds of the time and the
processor time of one submit, and what qo reaches of Huey's rate.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_PRODUCER = """
import sys, time
side, path = sys.argv[1:]
payload = {"payload": "x" * 80}
if side == "qo":
    from qo import sync
    client = sync.connect(f"sqlite:///{path}").open()
    submit = lambda: client.enqueue("noop", payload)
else:
    from huey import SqliteHuey
    huey = SqliteHuey("bench", filename=path)
    noop = huey.task()(lambda payload: None)
    submit = lambda: noop(payload)
for line in sys.stdin:
    times, n = (time.perf_counter(), time.process_time()), int(line)
    for _ in range(n):
        submit()
    print((time.perf_counter() - times[0]) / n, (time.process_time() - times[1]) / n, flush=True)
"""


class Producer:
    def __init__(self, python: str, side: str, path: Path) -> None:
        words = [python, "-c", _PRODUCER, side, str(path)]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("huey")
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--submits", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sides = {
            "qo": Producer(sys.executable, "qo", Path(folder, "qo.db")),
            "huey": Producer(options.huey, "huey", Path(folder, "huey.db")),
        }
        for producer in sides.values():
            producer.submit(options.submits)  # the first ones open the file
        measured = {side: [producer.submit(options.submits)] for side, producer in sides.items()}
        for _ in range(options.rounds - 1):
            for side, producer in sides.items():
                measured[side].append(producer.submit(options.submits))
        for producer in sides.values():
            producer.stop()
    medians = {
        side: [statistics.median(values) for values in zip(*rows, strict=True)] for side, rows in measured.items()
    }
    for side, (seconds, cpu_seconds) in medians.items():
        print(f"{side:5} {1e6 * seconds:7.1f} µs   {1e6 * cpu_seconds:7.1f} µs of processor time")
    rate, cpu = (medians["huey"][i] / medians["qo"][i] for i in range(2))
    print(f"qo has {rate:.2f} of the rate of Huey, {cpu:.2f} by processor time")


if __name__ == "__main__":
    main()
