"""Limits together with schedules, child processes, encryption, wrong clocks, and other ways to take tasks."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import qo
from qo.client import Client
from qo.clock import system_clock
from qo.encryption import Encrypted
from qo.engines.memory import MemoryEngine
from qo.fleet_limits.rules import declare_limits
from qo.model import Filter, Limit, Status
from qo.sync import connect as connect_sync
from qo.task_queue import TaskQueue
from qo.testing import S3Server
from qo.testing.samples import new
from tests.conditions import until, wait_until
from tests.worker.bench import Bench

_TWO = qo.Limit(concurrency=2, key="customer_id")
_WAIT_LIMIT = 30.0  # seconds


def _charge_in_a_child(customer_id: int, number: int, folder: str) -> None:
    """Runs while the folder has the file `gate`."""
    (Path(folder) / f"started-{customer_id}-{number}").touch()
    wait_until(lambda: not (Path(folder) / "gate").exists())


async def test_handlers_in_child_processes_keep_to_a_limit(bench: Bench, tmp_path: Path) -> None:
    bench.handle(_charge_in_a_child, "charge", executor="process", limit=_TWO)
    (tmp_path / "gate").touch()
    payloads = [{"customer_id": n % 2, "number": n, "folder": str(tmp_path)} for n in range(8)]
    ids = [await bench.submit("charge", payload, limit=_TWO) for payload in payloads]
    async with bench.working(concurrency=6):
        await until(lambda: len(_started(tmp_path)) == 4)
        assert Counter(name.split("-")[1] for name in _started(tmp_path)) == {"0": 2, "1": 2}
        waiting = [task for task_id in ids if (task := await bench.stored(task_id)).status is Status.PENDING]
        assert len(waiting) == 4
        (tmp_path / "gate").unlink()
        for task_id in ids:
            await bench.ended(task_id)
    assert len(_started(tmp_path)) == 8


def _started(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("started-*")]


async def test_tasks_of_a_schedule_are_in_their_group(tmp_path: Path) -> None:
    app = qo.App(f"sqlite:///{tmp_path}/qo.db")

    @app.task(limit=_TWO)
    def charge(customer_id: int) -> None: ...

    await app.schedules.aadd("nightly", task=charge, every=3600, kwargs={"customer_id": 7})
    await app.schedules.arun("nightly")
    async with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        (task,) = await client.engine.find(Filter(), limit=10)
        assert (task.type, task.group) == ("charge", "customer_id=7")


async def test_a_client_with_a_wrong_clock_keeps_to_a_rate() -> None:
    engine = MemoryEngine()
    late, early = (lambda off=off: system_clock() + off for off in (7200.0, -7200.0))
    async with Client(engine) as right, Client(engine, clock=late) as ahead, Client(engine, clock=early) as behind:
        await right.controls.limit_fleet("type:t", Limit(rate=1, per=3600))
        await engine.add([new(n) for n in range(6)])
        taken = [len(await client.dequeue("t", batch_size=10)) for client in (ahead, right, behind, ahead)]
        assert taken == [1, 0, 0, 0]


async def test_a_client_with_a_wrong_clock_shares_the_slots() -> None:
    engine = MemoryEngine()
    await declare_limits(engine, {"t": Limit(concurrency=2, key="customer")}, {})
    await engine.add([new(n, group="customer=1", payload=b'{"customer":1}') for n in range(4)])
    ahead = Client(engine, clock=lambda: system_clock() + 7200.0)
    async with Client(engine) as right, ahead:
        first = [*await ahead.dequeue("t", batch_size=1), *await right.dequeue("t", batch_size=1)]
        assert len(first) == 2
        assert await ahead.dequeue("t") == await right.dequeue("t") == []
        await ahead.ack(first[0])
        assert len(await right.dequeue("t", batch_size=10, wait=_WAIT_LIMIT)) == 1


async def test_encrypted_tasks_are_in_their_group(tmp_path: Path) -> None:
    url, codec = f"sqlite:///{tmp_path}/qo.db", Encrypted([Encrypted.new_key()])
    async with qo.connect(url, codec=codec) as one, qo.connect(url, codec=codec) as two:
        await one.controls.limit_fleet("key:customer_id=1", Limit(concurrency=1))
        for customer in (1, 1, 2):
            await one.enqueue("charge", {"customer_id": customer})
        taken: list[Any] = []
        while len(taken) < 2:
            taken += [qo.decode(task.payload) for task in await one.dequeue(batch_size=10, wait=_WAIT_LIMIT)]
        assert sorted(each["customer_id"] for each in taken) == [1, 2]
        assert await two.dequeue(batch_size=10) == []


async def test_consumers_of_a_database_in_a_bucket_share_the_slots() -> None:
    async with S3Server() as server:
        one, two = await qo.S3Store.create(server.url), await qo.S3Store.create(server.url)
        await one.controls.limit_fleet("queue:jobs", Limit(concurrency=1))
        producer = await one.producer("jobs")
        for _ in range(3):
            await producer.enqueue({"data": 1})
        mine, other = await one.consumer("jobs"), await two.consumer("jobs")
        (job,) = await mine.dequeue(batch_size=10)
        assert await other.dequeue(batch_size=10) == []
        await mine.ack(job, "done")
        assert len(await other.dequeue(batch_size=10, wait=_WAIT_LIMIT)) == 1
        await one.close()
        await two.close()


def test_workers_of_tq_keep_to_a_limit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tq.db"
    with connect_sync(url) as client:
        client.controls.limit_fleet("type:crawl", Limit(concurrency=2))
    lock, gate, running = threading.Lock(), threading.Event(), Counter[str]()

    def crawl(_: Any) -> None:
        with lock:
            running["now"] += 1
            running["most"] = max(running["most"], running["now"])
        assert gate.wait(_WAIT_LIMIT)
        with lock:
            running["now"] -= 1
            running["done"] += 1

    queue = TaskQueue()
    queue.init(url, poll_interval=0.05)
    try:
        queue("crawl").set_worker(crawl).set_worker_count(5)
        for number in range(6):
            queue("crawl").add({"number": number})
        wait_until(lambda: running["now"] == 2)
        gate.set()
        wait_until(lambda: running["done"] == 6)
        assert running["most"] == 2
    finally:
        queue.stop()
