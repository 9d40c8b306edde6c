"""The goals of the layout `log`, measured: `python -m bench.log_goals`, or only some of them: `--only drain --only idle`.

Real `qo worker` processes drain real queues on qo's own small S3 server, in a process of its own, where a PUT or DELETE takes
28 ms and a GET or LIST 25 ms. The other layouts and a SQLite file are measured in the same run. A rate is that of the handlers'
starts, from the first to the last; afterwards the store must show that each task was completed once. Dollars are those of S3
Standard. `--jqueue E/jqueue/bin/python` (from `sh bench/setup_envs.sh E jqueue`) measures jqueue too.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from bench.buckets import GET, PUT, measure_jqueue
from qo.client import Client
from qo.engines import open_engine
from qo.ids import new_id
from qo.model import NewTask, Status
from qo.testing.s3_server import Latency, Request, S3Server

PRICES = {"put": 5.0, "list": 5.0, "get": 0.4, "delete": 0.0}  # dollars a million requests
STARTED = struct.Struct("<qq")  # as in apps/started_app.py
BATCH = 2000
RATE = 20  # submits a second when latency is measured


class Line(NamedTuple):
    what: str
    value: str
    goal: str = ""
    met: bool | None = None


# --- the store


class CountingServer(S3Server):
    def __init__(self, latency: Latency) -> None:
        super().__init__(latency=latency)
        self.kinds: Counter[str] = Counter()

    def receive(self, talk: object, request: Request) -> None:
        kind = "list" if "list-type=" in request.target else request.method.lower()
        self.kinds["delete" if kind == "post" else kind] += 1
        super().receive(talk, request)


def serve(told: Connection) -> None:
    async def run() -> None:
        async with CountingServer(Latency(put=PUT, get=GET, list=GET, delete=PUT)) as s3:
            told.send(s3.url)
            loop = asyncio.get_running_loop()
            loop.add_reader(told.fileno(), lambda: told.send(s3.kinds) if told.recv() else loop.stop())
            await asyncio.Event().wait()

    asyncio.run(run())


class Store:
    """A new bucket on a server of its own."""

    def __init__(self, layout: str) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        self.server = self._ours.recv()
        self.url = f"{self.server}&layout={layout}"

    def requests(self) -> Counter[str]:
        self._ours.send(True)
        return self._ours.recv()

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


class File:
    """A SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/qo.db"

    def requests(self) -> Counter[str]:
        return Counter()

    def close(self) -> None: ...


@contextmanager
def opened(layout: str) -> Iterator[Store | File]:
    with tempfile.TemporaryDirectory() as folder:
        store = File(Path(folder)) if layout == "file" else Store(layout)
        try:
            yield store
        finally:
            store.close()


# --- workers


class Workers:
    """`qo worker` processes, and what their handlers wrote down."""

    def __init__(self, url: str, number: int, folder: Path) -> None:
        self._starts = folder / "starts"
        self._starts.touch()
        here = Path(__file__).parent
        paths = [str(here.parent / "src"), str(here)]
        environment = os.environ | {
            "QO_URL": url,
            "STARTS": str(self._starts),
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        }
        self.began = time.monotonic_ns()
        command = [sys.executable, "-m", "qo", "worker", "apps.started_app:app"]
        self._log = (folder / "workers.log").open("wb")
        self.processes = [
            subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log) for _ in range(number)
        ]

    def wait(self, number: int, limit: float = 600) -> list[tuple[int, int]]:
        """When the first so many tasks were submitted and started."""
        deadline = time.monotonic() + limit
        while self._starts.stat().st_size < number * STARTED.size:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                raise RuntimeError(
                    f"no {number} starts; see {self._log.name}\n{Path(self._log.name).read_text()[-3000:]}"
                )
            time.sleep(0.02)
        return list(STARTED.iter_unpack(self._starts.read_bytes()[: number * STARTED.size]))

    def peak_memory(self) -> float:
        """Of the largest process, in MB."""
        every = subprocess.run(["ps", "-eo", "pid,ppid"], check=True, capture_output=True, text=True).stdout.split()[2:]
        parents = dict(zip(every[::2], every[1::2], strict=True))
        roots = {str(process.pid) for process in self.processes}
        family = {pid for pid in parents if {pid, parents[pid], parents.get(parents[pid])} & roots}
        return max(_high_water(pid) for pid in family)

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)
        self._log.close()


def _high_water(pid: str) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


@contextmanager
def workers(url: str, number: int = 1) -> Iterator[Workers]:
    with tempfile.TemporaryDirectory() as folder:
        running = Workers(url, number, Path(folder))
        try:
            yield running
        finally:
            running.stop()


# --- submits


def new_tasks(number: int) -> list[NewTask]:
    payload = b'{"t":%d}'
    return [
        NewTask(id=new_id(), queue="default", type="noop", payload=payload % time.monotonic_ns()) for _ in range(number)
    ]


def submit(url: str, number: int) -> float:
    """Tasks a second."""

    async def run() -> float:
        async with Client(open_engine(url)) as client:
            began = time.perf_counter()
            for _ in range(number // BATCH):
                await client.submit_many(new_tasks(BATCH))
            return number / (time.perf_counter() - began)

    return asyncio.run(run())


def repair(url: str) -> None:
    async def run() -> None:
        async with Client(open_engine(url)) as client:
            await client.engine.repair()

    asyncio.run(run())


def check_completed(url: str, at_least: int) -> None:
    async def run() -> int:
        async with Client(open_engine(url)) as client:
            return sum(n for lane, n in (await client.engine.count()).items() if lane.status is Status.COMPLETED)

    deadline = time.monotonic() + 60
    while (done := asyncio.run(run())) < at_least:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{done} of {at_least} were completed")


def dollars(requests: Counter[str], tasks: int) -> float:
    """A million tasks."""
    return sum(PRICES.get(kind, 0.0) * number for kind, number in requests.items()) / tasks


def rate_of(starts: list[tuple[int, int]]) -> float:
    times = sorted(started for _, started in starts)
    return (len(times) - 1) / (times[-1] - times[0]) * 1e9


# --- the goals


def drain(asked: argparse.Namespace) -> Iterator[Line]:
    """One worker, every layout."""
    rates: dict[str, float] = {}
    sizes = {"log": asked.tasks, "file": asked.tasks, "tasks": 2000, "one": 2000, "sqlite": 2000}
    for layout, tasks in sizes.items():
        best = 0.0
        for _ in range(asked.repeats if layout in ("log", "file") else 1):
            with opened(layout) as store:
                bulk = submit(store.url, tasks)
                with workers(store.url) as running:
                    best = max(best, rate_of(running.wait(tasks)))
                requests = store.requests()  # before the check, which reads the whole queue again
                check_completed(store.url, tasks)
        rates[layout] = best
        goal = {"log": ("≥ 8,000/s", best >= 8000)}.get(layout, ("", None))
        name = "SQLite file" if layout == "file" else f"layout {layout}"
        yield Line(f"drain of {tasks:,} tasks, {name}", f"{best:,.0f}/s", *goal)
        if layout == "log":
            each = sum(requests.values()) / tasks
            yield Line("bulk submit", f"{bulk:,.0f}/s", "≥ 10,000/s", bulk >= 10_000)
            yield Line("requests a task in bulk", f"{each:.4f} {dict(requests)}", "≤ 0.01", each <= 0.01)
            cost = dollars(requests, tasks)
            yield Line("cost of a million tasks", f"${cost:.3f}", "≤ $0.03", cost <= 0.03)
    share = rates["log"] / rates["file"]
    yield Line("drain, log against the SQLite file", f"{share:.2f}", "≥ 0.6", share >= 0.6)
    if asked.jqueue:
        with opened("one") as store:
            told = argparse.Namespace(jqueue=asked.jqueue, callers=100, tasks=1000)
            yield Line("jqueue, 100 callers", f"{measure_jqueue(0, store.server, told):,.0f}/s")


def fleet(asked: argparse.Namespace) -> Iterator[Line]:
    """Several workers on one shard."""
    alone = 0.0
    for number in (1, 2, 4):
        with opened("log") as store:
            submit(store.url, asked.tasks)
            with workers(store.url, number) as running:
                rate = rate_of(running.wait(asked.tasks))
            check_completed(store.url, asked.tasks)
        alone = alone or rate
        goal = ("", None) if number == 1 else ("≥ 1.0 of one", rate >= alone)
        yield Line(f"{number} worker{'s' * (number > 1)}, in sum", f"{rate:,.0f}/s ({rate / alone:.2f})", *goal)


def depth(asked: argparse.Namespace) -> Iterator[Line]:
    """The same drain in front of a deep queue, and the start of its worker."""
    shallow = 0.0
    for waiting in (1000, 100_000, asked.deepest):
        with opened("log") as store:
            submit(store.url, waiting // BATCH * BATCH + asked.tasks)
            repair(store.url)
            with workers(store.url) as running:
                first = running.wait(1)
                starts = running.wait(asked.tasks)
                memory = running.peak_memory()
        rate = rate_of(starts)
        shallow = shallow or rate
        goal = ("", None) if waiting == 1000 else ("within 1.3 of 1,000", rate * 1.3 >= shallow)
        yield Line(f"drain with {waiting:,} waiting", f"{rate:,.0f}/s ({shallow / rate:.2f})", *goal)
        took = (first[0][1] - running.began) / 1e9
        is_deepest = waiting == asked.deepest
        yield Line(f"start with {waiting:,} waiting", f"{took:.1f} s", *(("≤ 10 s", took <= 10) if is_deepest else ()))
        goal = ("≤ 250 MB", memory <= 250) if is_deepest else ("", None)
        yield Line(f"memory with {waiting:,} waiting", f"{memory:.0f} MB", *goal)


def latency(asked: argparse.Namespace) -> Iterator[Line]:
    """From the call of submit to the start of the handler, and a submit alone."""
    number = 20 * RATE

    async def produce(url: str) -> list[float]:
        async def one(client: Client) -> float:
            began = time.perf_counter()
            await client.submit_many(new_tasks(1))
            return time.perf_counter() - began

        async with Client(open_engine(url)) as client:
            await one(client)
            alone = [await one(client) for _ in range(20)]
            running = []
            for _ in range(number):
                running.append(asyncio.create_task(one(client)))
                await asyncio.sleep(1 / RATE)
            await asyncio.gather(*running)
            return alone

    with opened("log") as store, workers(store.url) as running:
        submit(store.url, BATCH)
        running.wait(BATCH)
        with opened("log") as other:
            alone = statistics.median(asyncio.run(produce(other.url))[:20])
        asyncio.run(produce(store.url))
        waits = sorted((started - called) / 1e6 for called, started in running.wait(BATCH + 21 + number)[-number:])
    yield Line("one awaited submit", f"{alone * 1000:.0f} ms", "≤ 1.3 PUT (36 ms)", alone <= 1.3 * PUT)
    half, most = statistics.median(waits), waits[int(len(waits) * 0.99)]
    yield Line(f"submit to start at {RATE}/s, p50", f"{half:.0f} ms", "≤ 120 ms", half <= 120)
    yield Line(f"submit to start at {RATE}/s, p99", f"{most:.0f} ms", "≤ 400 ms", most <= 400)


def idle(asked: argparse.Namespace) -> Iterator[Line]:
    """An idle worker after a quiet minute."""
    with opened("log") as store, workers(store.url) as running:
        submit(store.url, BATCH)
        running.wait(BATCH)
        time.sleep(70)
        before = store.requests()
        time.sleep(60)
        used = store.requests() - before
    rate = sum(used.values()) / 60
    yield Line("idle worker", f"{rate:.2f} requests/s {dict(used)}", "≤ 0.25", rate <= 0.25)


GOALS: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "drain": drain,
    "fleet": fleet,
    "depth": depth,
    "latency": latency,
    "idle": idle,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=GOALS, help="measure this; repeat it for several")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--deepest", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="drains of which the best counts")
    parser.add_argument("--jqueue", metavar="PYTHON", help="also measure jqueue, with this Python")
    asked = parser.parse_args()
    missed = 0
    for name in asked.only or GOALS:
        for line in GOALS[name](asked):
            mark = {None: " ", True: "✔", False: "✘"}[line.met]
            missed += line.met is False
            print(f"{mark} {line.what:45} {line.value:40} {line.goal}", flush=True)
    print(f"{missed} goals missed" if missed else "all goals met")


if __name__ == "__main__":
    main()
