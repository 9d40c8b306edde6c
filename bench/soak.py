"""Does a server stay the size it is? `python -m bench.soak --minutes 10 [--rate 100]`

One server process on SQLite, one worker over HTTP, and callers that submit (one by one and in bulk), look, list, listen
to events, cancel, and clean up what ended. The server's memory and open files are sampled; the table has a line a
minute, and the verdict compares the first and the last quarter after the warm-up. The exit code is 1 if it grew.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta

import aiohttp

WARM_UP = 0.3  # of the time: SQLite's page caches fill, the interpreter's pools find their size
ALLOWED = 0.03  # growth of the memory between the quarters that counts as flat
FEW_FILES = 4
BEHIND = 0.1  # of what was submitted may wait at the end
EVERY = 5.0  # seconds between samples
KEPT = 30.0  # seconds a finished task is kept


class Sizes:
    def __init__(self, pid):
        self.pid, self.rows, self.began = pid, [], time.monotonic()

    def sample(self):
        with open(f"/proc/{self.pid}/status") as file:
            facts = dict(line.split(":", 1) for line in file)
        memory = int(facts["VmRSS"].split()[0]) / 1024
        self.rows.append((time.monotonic() - self.began, memory, len(os.listdir(f"/proc/{self.pid}/fd"))))
        return self.rows[-1]

    def verdict(self):
        settled = self.rows[int(len(self.rows) * WARM_UP) :]
        quarter = max(1, len(settled) // 4)
        (before, files), (after, files_after) = (
            [statistics.median(row[column] for row in part) for column in (1, 2)]
            for part in (settled[:quarter], settled[-quarter:])
        )
        grown = after / before - 1
        flat = grown <= ALLOWED and files_after - files <= FEW_FILES
        text = f"{before:.1f} -> {after:.1f} MiB ({grown:+.1%}), open files {files:.0f} -> {files_after:.0f}"
        return (
            flat,
            f"{'flat' if flat else 'NOT FLAT'}: {text}, medians of the first and last quarter after the warm-up",
        )


class Callers:
    def __init__(self, session, rate):
        self.session, self.rate = session, rate
        self.submitted = self.requests = self.refused = 0

    async def ask(self, method, path, body=None):
        async with self.session.request(method, path, json=body) as answer:
            await answer.read()
            self.requests += 1
            self.refused += answer.status >= 500
            return answer

    async def submit(self):
        pause, n = 1 / self.rate, 0
        while True:
            n += 1
            body = {"task_type": "nothing", "priority": ("high", "medium", "low")[n % 3], "parameters": {}}
            if n % 10 == 0:
                body["idempotency_key"] = f"key-{n}"
            await self.ask("POST", "/api/v1/tasks", body)
            self.submitted += 1
            if n % 200 == 0:
                await self.ask("POST", "/api/v1/tasks/bulk", {"tasks": [{"task_type": "nothing"}] * 100})
                self.submitted += 100
            if n % 50 == 0:
                await self.ask("POST", "/api/tasks", {"type": "nobody", "payload": "x" * 1000})
                await self.ask("POST", "/api/v1/tasks", {"task_type": "not a name"})
            await asyncio.sleep(pause)

    async def look(self):
        while True:
            for path in ("/api/v1/queue/stats", "/api/v1/tasks?limit=50", "/api/tasks/stats", "/api/tasks?limit=20",
                         "/metrics", "/api/v1/workers", "/readyz", "/nowhere"):  # fmt: skip
                await self.ask("GET", path)
            await asyncio.sleep(1)

    async def tidy(self):
        while True:
            await asyncio.sleep(10)
            await self.ask("POST", "/api/v1/tasks/replay", {"limit": 10})
            before = datetime.now(UTC) - timedelta(seconds=KEPT)
            await self.ask("DELETE", f"/api/tasks?olderThan={before:%Y-%m-%dT%H:%M:%SZ}")

    async def listen(self):
        """Comes and goes, as pages do."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(7), self.session.get("/api/v1/events") as answer:
                    async for _ in answer.content:
                        pass


async def soak(url, pid, minutes, rate):
    sizes = Sizes(pid)
    async with aiohttp.ClientSession(url) as session:
        callers = Callers(session, rate)
        works = [asyncio.create_task(work()) for work in (callers.submit, callers.look, callers.tidy, callers.listen)]
        print("minute  server MiB  open files  submitted  requests  5xx")
        shown = 0
        while time.monotonic() - sizes.began < 60 * minutes:
            await asyncio.wait(works, timeout=EVERY, return_when=asyncio.FIRST_EXCEPTION)
            for work in works:
                if work.done():
                    work.result()
            at, memory, files = sizes.sample()
            if at >= 60 * shown:
                shown += 1
                print(
                    f"{at / 60:6.1f}  {memory:10.1f}  {files:10}  {callers.submitted:9,}  {callers.requests:8,}  {callers.refused:3}",
                    flush=True,
                )
        for work in works:
            work.cancel()
        await asyncio.wait(works)
        counts = await (await session.get("/api/tasks/stats")).json()
    flat, text = sizes.verdict()
    print(
        f"left in the queue: {counts['pending']} pending, {counts['processing']} processing, {counts['failed']} failed"
    )
    print(text)
    behind = counts["pending"] + counts["processing"] > BEHIND * callers.submitted
    if behind:
        print("and the worker did not keep up, so this says nothing: look for errors, or lower --rate")
    return flat and not callers.refused and not behind


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=100, help="single submits a second")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        log = stack.enter_context(open(f"{folder}/log", "w+"))
        serve = ["serve", "--url", f"sqlite:///{folder}/soak.db", "--port", "0", "--log-json"]
        server = stack.enter_context(running(serve, log))
        url = f"http://127.0.0.1:{port_of(f'{folder}/log', server)}"
        stack.enter_context(
            running(["worker", "--url", url, "--log-level", "error", "bench.over_http:app"], subprocess.DEVNULL)
        )
        sys.exit(0 if asyncio.run(soak(url, server.pid, given.minutes, given.rate)) else 1)


@contextlib.contextmanager
def running(words, log):
    process = subprocess.Popen([sys.executable, "-m", "qo", *words], stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def port_of(log, server):
    while server.poll() is None:
        with open(log) as file:
            for line in file:
                if '"port"' in line:
                    return json.loads(line)["port"]
        time.sleep(0.05)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
