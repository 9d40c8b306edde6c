"""Kills real workers of a log again and again: `python -m bench.log_kills`, on a SeaweedFS of its own.

Four `qo worker` processes share one queue. Every 10 seconds one of them is killed and another one started. At the end each task must be
completed once, and none is deleted (`--retention 7d`: by default this layout keeps few finished tasks). The counts come from the store. A
proxy in front of the server counts the requests, from which the dollars (S3 Standard) follow.
"""

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bench.log_goals import dollars, new_tasks
from qo.client import Client
from qo.engines import open_engine
from qo.ids import new_token
from qo.model import Status
from tests.servers.process import KEYS
from tests.servers.seaweed import started_seaweed

WORKERS = 4
BATCH = 2000


# --- the proxy


class CountingProxy:
    """Forwards connections, and counts the requests by their first lines."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.kinds: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled when the run ends
            behind = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._requests(reader, behind[1]), _forward(behind[0], writer))

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read whole requests, so that nothing in a body is taken for one."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self._count(head)
                size = next((int(v) for k, v in _headers(head) if k == b"content-length"), 0)
                writer.write(head + await reader.readexactly(size))
                await writer.drain()

    def _count(self, head: bytes) -> None:
        method, target, _ = head.split(b" ", 2)
        kind = "list" if b"list-type=" in target else method.decode().lower()
        self.kinds["delete" if kind == "post" else kind] += 1


def _headers(head: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        yield name.strip().lower(), value.strip()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


# --- workers


class KilledWorkers:
    def __init__(self, url: str, folder: Path) -> None:
        here = Path(__file__).parent
        self._environment = os.environ | {
            "QO_URL": url,
            "STARTS": str(folder / "starts"),
            "PYTHONPATH": os.pathsep.join([str(here.parent / "src"), str(here)]),
        }
        self._log = (folder / "workers.log").open("wb")
        self.kills = 0
        self._running = [self._start() for _ in range(WORKERS)]

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "qo", "worker", "apps.started_app:app", "--lease", "15s", "--retention", "7d"]
        return subprocess.Popen(
            command, env=self._environment, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def replace_one(self) -> None:
        """Kill a worker with all its processes, and start another one."""
        victim = self._running.pop(0)
        os.killpg(victim.pid, 9)
        victim.wait()
        self.kills += 1
        self._running.append(self._start())

    def stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(60)
        self._log.close()


# --- the run


async def run(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name, started_seaweed(Path(name)) as place:
        proxy = CountingProxy(int(place.endpoint.rpartition(":")[2]))
        async with proxy.serving() as endpoint:
            url = f"s3://plain/{new_token()}?endpoint={endpoint}&layout=log"
            await _measure(asked, url, proxy, Path(name))


async def _measure(asked: argparse.Namespace, url: str, proxy: CountingProxy, folder: Path) -> None:
    print(f"load average before: {os.getloadavg()[0]:.1f}", flush=True)
    began = time.monotonic()
    async with Client(open_engine(url)) as client:
        for _ in range(asked.tasks // BATCH):
            await client.submit_many(new_tasks(BATCH))
        print(f"{asked.tasks:,} tasks submitted in {time.monotonic() - began:.0f} s", flush=True)
        workers = await asyncio.to_thread(KilledWorkers, url, folder)
        try:
            counts = await _drained(asked, client, workers)
        finally:
            await asyncio.to_thread(workers.stop)
        took = time.monotonic() - began
    starts = (folder / "starts").stat().st_size // 16
    used = sum(proxy.kinds.values())
    print(f"{counts}, after {workers.kills} kills, in {took:.0f} s")
    print(f"handlers started {starts:,} times: {starts - asked.tasks:,} attempts were repeated after a kill")
    print(f"{used:,} requests, {used / asked.tasks:.4f} a task: {dict(proxy.kinds)}")
    cost = dollars(proxy.kinds, asked.tasks)
    print(f"${cost * asked.tasks / 1e6:.4f}, or ${cost:.3f} for a million tasks; load average {os.getloadavg()[0]:.1f}")
    if counts != {Status.COMPLETED: asked.tasks}:
        raise SystemExit("not every task was completed once")


async def _drained(asked: argparse.Namespace, client: Client, workers: KilledWorkers) -> Counter[Status]:
    """Kill workers until every task is finished. Returns how many tasks have which status."""
    deadline, next_kill = time.monotonic() + asked.timeout, time.monotonic() + asked.every
    while True:
        counts = Counter[Status]()
        for lane, number in (await client.engine.count()).items():
            counts[lane.status] += number
        counts = +counts
        if counts[Status.COMPLETED] >= asked.tasks or time.monotonic() > deadline:
            return counts
        if time.monotonic() >= next_kill:
            await asyncio.to_thread(workers.replace_one)
            next_kill += asked.every
        await asyncio.sleep(min(1.0, asked.every) * random.uniform(0.5, 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200_000)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between kills")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds until the run is given up")
    os.environ.update(KEYS)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
