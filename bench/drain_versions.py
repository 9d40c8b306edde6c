"""Drains of source trees in one alternating run: `python -m bench.drain_versions TREE TREE … [--url TEMPLATE]`.

A TREE is a folder with `src/qo` in it; the packages it needs are those of this interpreter. In each round `qo submit` and
`qo worker --drain` of each tree in turn submit and run the same no-op tasks in a new store. A drain of one task is
subtracted, so the figures have no start-up in them. Printed are the medians over the rounds of the time and of the
processor time for each task, and what each tree reaches of the first one's.

The template of a URL has the field {name} in it, for example postgresql://…/postgres?schema={name}.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

_APP = """
from qo import App

app = App()


@app.task
def noop(number: int) -> int:
    return number
"""


def _run(tree: Path, folder: Path, *words: str) -> tuple[float, float]:
    """Seconds and processor seconds of a command of the tree."""
    environment = os.environ | {"PYTHONPATH": f"{tree.absolute() / 'src'}:{folder}"}
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # or each command compiles the tree, which takes longer than a drain
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "qo", *words],
        env=environment,
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def drain(tree: Path, folder: Path, url: str, tasks: int) -> tuple[float, float]:
    """Seconds and processor seconds of a worker that runs so many tasks."""
    lines = [json.dumps({"type": "noop", "payload": {"number": number}}) for number in range(tasks)]
    (folder / "tasks.jsonl").write_text("\n".join(lines), "utf-8")
    _run(tree, folder, "submit", "tasks.jsonl", "--url", url)
    return _run(tree, folder, "worker", "noop_app:app", "--drain", "--url", url)


def measure(tree: Path, template: str | None, tasks: int, name: str) -> tuple[float, float]:
    """Microseconds and processor microseconds of one task."""
    found = []
    for number in (1, tasks):
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            (folder / "noop_app.py").write_text(_APP, "utf-8")
            url = (template or f"sqlite:///{folder}/{{name}}.db").format(name=f"{name}_{number}")
            found.append(drain(tree, folder, url, number))
    start, whole = found
    return (whole[0] - start[0]) / tasks * 1e6, (whole[1] - start[1]) / tasks * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--url", help="a template; default: a new SQLite file for each drain")
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    times, costs = defaultdict[Path, list[float]](list), defaultdict[Path, list[float]](list)
    for number in range(given.rounds):
        for place, tree in list(enumerate(given.trees))[:: 1 if number % 2 == 0 else -1]:
            took, cost = measure(tree, given.url, given.tasks, f"drain_{os.getpid()}_{number}_{place}")
            times[tree].append(took)
            costs[tree].append(cost)
    first = given.trees[0]
    for tree in given.trees:
        took, cost = statistics.median(times[tree]), statistics.median(costs[tree])
        against = statistics.median(times[first]) / took, cost / statistics.median(costs[first])
        print(
            f"{tree}: {took:.0f} µs a task, {against[0]:.2f} of the rate; processor {cost:.0f} µs, {against[1]:.2f} of the cost;"
            f" rounds {[round(each) for each in times[tree]]} and {[round(each) for each in costs[tree]]}"
        )


if __name__ == "__main__":
    main()
