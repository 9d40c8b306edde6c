"""Limits of the fleet: how well a rate is used, what a full group costs the others, and how soon small tenants are served.

    python -m bench.limits rates [sqlite:///...]      2, 4 and 8 worker processes share 100 starts a second
    python -m bench.limits parked [URL]               the drain of others beside 100,000 waiting tasks of a full group;
                                                      {} in the URL is a number, for four stores: "...?schema=parked{}"
    python -m bench.limits fair [URL]                 one tenant with 100,000 tasks, nine with 10 each
    python -m bench.limits plain [URL]                processor time of a drain without limits, for comparing two checkouts

Every number is from this machine and this run.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import qo
from qo.client import Client, connect
from qo.fleet_limits.limit_state import Holder, LimitState
from qo.fleet_limits.rules import state_note
from qo.ids import new_id
from qo.model import ClaimRequest, NewTask, with_group
from qo.tasks import Registry, make_handler, make_options
from qo.worker import Worker, WorkerSettings

_ROOT = Path(__file__).parents[1]
_BATCH = 1000
LIMIT = qo.Limit(rate=100)


async def add(client: Client, number: int, type_: str, group: str | None = None, payload: bytes = b"{}") -> None:
    for at in range(0, number, _BATCH):
        size = min(_BATCH, number - at)
        needs = with_group((), group)
        await client.engine.add(
            [NewTask(id=new_id(), queue="default", type=type_, payload=payload, needs=needs) for _ in range(size)]
        )


def registry_of(function: Any, **options: Any) -> Registry:
    registry = Registry()
    registry.add(make_handler(function, type=function.__name__, options=make_options(function, **options)))
    return registry


async def drain(client: Client, registry: Registry, done: Any, **settings: Any) -> tuple[float, float]:
    """Seconds, and seconds of processor time, until `done()`."""
    worker = Worker(client, registry, WorkerSettings(**settings))
    began, processor = time.perf_counter(), time.process_time()
    running = asyncio.create_task(worker.run())
    while not done():  # noqa: ASYNC110 - `done` is a cheap test of a counter
        await asyncio.sleep(0.005)
    took = time.perf_counter() - began, time.process_time() - processor
    worker.stop()
    await running
    return took


# --- rates


async def rate_worker(url: str, path: str) -> None:
    async def call() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{time.time()!r}\n".encode())
        os.close(descriptor)

    async with connect(url) as client:
        await Worker(client, registry_of(call, limit=LIMIT), WorkerSettings(concurrency=10)).run()


def rates(url: str) -> None:
    for workers in (2, 4, 8):
        with tempfile.TemporaryDirectory() as folder:
            store = url or f"sqlite:///{folder}/queue.db"
            path = Path(folder) / "starts"
            asyncio.run(_fill(store))
            command = [sys.executable, "-m", "bench.limits", "rate-worker", store, str(path)]
            processes = [subprocess.Popen(command, cwd=_ROOT) for _ in range(workers)]
            while not path.exists():
                time.sleep(0.05)
            time.sleep(14)
            for process in processes:
                process.kill()
                process.wait()
            starts = sorted(map(float, path.read_text().split()))
            seconds = Counter(int(start) for start in starts)
            full = [seconds[second] for second in range(int(starts[0]) + 3, int(starts[0]) + 12)]
            window = max(
                sum(1 for other in starts[at : at + 200] if other < start + 1) for at, start in enumerate(starts)
            )
            print(f"{workers} workers: starts in each second after the first two {full}, most in any window {window}")


async def _fill(url: str) -> None:
    async with connect(url) as client:
        await add(client, 3000, "call")


# --- a full group


async def parked(url: str, waiting: int) -> None:
    times = []
    for number, full in enumerate((0, waiting, 0, waiting)):  # the first drain is slower, so the last two count
        with tempfile.TemporaryDirectory() as folder:
            async with connect(url.format(number) or f"sqlite:///{folder}/queue.db") as client:
                times.append(await _drain_beside(client, full))
    (alone, processor), (beside, processor_beside) = times[-2:]
    print(
        f"5,000 tasks: {alone:.2f} s alone, {beside:.2f} s beside {waiting:,} of a full group ({beside / alone:.2f}x); "
        f"processor {processor:.2f} s and {processor_beside:.2f} s"
    )


async def _drain_beside(client: Client, full: int) -> tuple[float, float]:
    ended = 0

    async def call(customer: int) -> None:
        nonlocal ended
        ended += 1

    limit = qo.Limit(concurrency=1, key="customer")
    await add(client, 1 + full, "call", "customer=0", b'{"customer":0}')
    (task,) = await client.engine.claim(
        ClaimRequest(worker_id="other", lease_id="other", lease=3600, takes_groups=True)
    )
    state = LimitState(scope="type:call", holders={"customer=0": {task.id: Holder(task.attempt, "other")}})
    await client.engine.write_note(state_note("type:call"), _encode(state), expected="any")
    for customer in range(1, 51):
        await add(client, 100, "call", f"customer={customer}", b'{"customer":%d}' % customer)
    return await drain(client, registry_of(call, limit=limit), lambda: ended >= 5000, concurrency=50)


def _encode(state: LimitState) -> bytes:
    import msgspec

    return msgspec.json.encode(state)


# --- fairness


async def fair(url: str, waiting: int) -> None:
    order: list[int] = []

    async def send(tenant: int) -> None:
        order.append(tenant)

    with tempfile.TemporaryDirectory() as folder:
        async with connect(url or f"sqlite:///{folder}/queue.db") as client:
            await add(client, waiting, "send", "tenant=0", b'{"tenant":0}')
            for tenant in range(1, 10):
                await add(client, 10, "send", f"tenant={tenant}", b'{"tenant":%d}' % tenant)
            await drain(client, registry_of(send, fair_by="tenant"), lambda: len(order) >= 2000, concurrency=10)
    last = max(number for number, tenant in enumerate(order) if tenant)
    small = sum(1 for tenant in order if tenant)
    print(f"{small} tasks of nine tenants beside {waiting:,} of one: the last of them is start number {last + 1}")


# --- no limits


async def plain(url: str, number: int) -> None:
    for _ in range(3):
        ended = 0

        async def call() -> None:
            nonlocal ended
            ended += 1

        with tempfile.TemporaryDirectory() as folder:
            async with connect(url or f"sqlite:///{folder}/queue.db") as client:
                await add(client, number, "call")
                took, processor = await drain(client, registry_of(call), lambda: ended >= number, concurrency=50)
        print(f"{number:,} tasks: {took:.2f} s, processor {processor:.2f} s")


def main() -> None:
    what, *rest = sys.argv[1:]
    url = rest[0] if rest else ""
    waiting = int(os.environ.get("WAITING", "100000"))
    match what:
        case "rate-worker":
            with suppress(KeyboardInterrupt):
                asyncio.run(rate_worker(*rest))
        case "rates":
            rates(url)
        case "parked":
            asyncio.run(parked(url, waiting))
        case "fair":
            asyncio.run(fair(url, waiting))
        case "plain":
            asyncio.run(plain(url, 20_000))


if __name__ == "__main__":
    main()
