"""Answers hold a bounded number of bytes, whatever the tasks hold and however many are asked for."""

import asyncio
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import httpx
import msgspec
import pytest

from qo import wire
from qo.client import Client
from qo.engines import open_engine
from qo.engines.memory import MemoryEngine
from qo.errors import KeyReused
from qo.model import ClaimRequest, Filter, Task, release
from qo.testing.samples import claim_one, new, task_id
from qo.web.callers import Scope
from qo.web.http.byte_budget import RESPONSE_BYTES, ClaimSizes
from qo.web.http.tokens import create_token
from qo.web.remote.worker_leases import TimeLimits
from tests.web.serving import in_process, served

SIZE = 256 * 1024
NUMBER = 100  # of tasks: 25 MiB
VALUE = b'"' + b"x" * (SIZE - 2) + b'"'
LARGE = RESPONSE_BYTES + SIZE + 4096


class Watched(MemoryEngine):
    """Remembers how many bytes it gave to one call at most."""

    largest = 0

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return self._weighed(await super().find(where, limit=limit, after=after, created_before=created_before))

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        tasks = await super().get(ids)
        self._weighed([task for task in tasks if task])
        return tasks

    async def claim(self, claim_request: ClaimRequest) -> list[Task]:
        return self._weighed(await super().claim(claim_request))

    def _weighed(self, tasks: list[Task]) -> list[Task]:
        self.largest = max(self.largest, sum(len(task.payload) for task in tasks))
        return tasks


@pytest.fixture
async def engine() -> Watched:
    engine = Watched()
    await engine.add([new(n, payload=VALUE, queue="default") for n in range(NUMBER)])
    return engine


async def test_a_short_list_has_a_cursor_to_continue(engine: Watched) -> None:
    seen, after, pages = list[str](), "", 0
    async with in_process(Client(engine)) as http:
        engine.largest = 0
        while after is not None:
            answer = await http.get("/api/v1/tasks", params={"limit": 500, "after": after})
            assert len(answer.content) <= LARGE
            seen += [task["task_id"] for task in answer.json()["tasks"]]
            after, pages = answer.json()["next"], pages + 1
    assert sorted(seen) == [task_id(n) for n in range(NUMBER)]
    assert pages == 4
    assert engine.largest <= LARGE


async def test_a_page_by_offset_keeps_its_length_and_leaves_values_out(engine: Watched) -> None:
    async with in_process(Client(engine)) as http:
        answer = await http.get("/api/tasks", params={"limit": 100})
    tasks = answer.json()["tasks"]
    assert len(answer.content) <= LARGE and len(tasks) == NUMBER
    assert [task.get("valuesOmitted", False) for task in tasks] == [False] * 32 + [True] * 68
    assert (tasks[0]["payload"], tasks[-1]["payload"]) == ("x" * (SIZE - 2), None)


async def test_the_port_answers_in_parts(engine: Watched) -> None:
    async with in_process(Client(engine)) as http:

        async def ask(call: str, request: object) -> httpx.Response:
            kind = {"content-type": wire.MEDIA_TYPE}
            answer = await http.post(f"{wire.PATH}/{call}", content=wire.encode(request), headers=kind)
            assert answer.status_code == 200 and len(answer.content) <= LARGE
            return answer

        engine.largest = 0
        found = await ask("find", wire.Find(where=Filter(), limit=10_000))
        assert wire.CUT in found.headers and len(msgspec.msgpack.decode(found.content)) == 32
        got = await ask("get", [task_id(1)] * 10_000)
        assert len(msgspec.msgpack.decode(got.content)) == 32
        await ask("claim", ClaimRequest(worker_id="w", lease_id="l", limit=2))  # now the sizes are known
        await ask("claim", ClaimRequest(worker_id="w", lease_id="m", limit=10_000))
        assert engine.largest <= LARGE


def test_an_engine_over_http_puts_the_parts_together() -> None:
    number = 40

    async def read(url: str) -> None:
        engine = open_engine(url)
        await engine.open()
        try:
            ids = [task_id(n) for n in range(number)]
            assert [task and task.id for task in await engine.get([*ids, task_id(999)])] == [*ids, None]
            assert sorted(task.id for task in await engine.find(Filter(), limit=1000)) == ids
            assert len(await engine.find(Filter(), limit=35)) == 35
        finally:
            await engine.close()

    below = MemoryEngine()
    with served(below) as api:
        api.run(below.add([new(n, payload=VALUE) for n in range(number)]))
        asyncio.run(read(api.url))


async def test_large_values_beside_the_tasks_are_fetched_within_the_budget(tmp_path: Path) -> None:
    async with in_process(Client(open_engine(f"file://{tmp_path}?layout=tasks"))) as http:
        value = "x" * (4 * 1024 * 1024)
        engine = open_engine(f"file://{tmp_path}?layout=tasks")
        await engine.open()
        await engine.add([new(n, payload=msgspec.json.encode(value), queue="default") for n in range(8)])
        await engine.close()
        answer = (await http.get("/api/v1/tasks", params={"limit": 500})).json()
        assert len(answer["tasks"]) == 2 and answer["next"]
        managed = (await http.get("/api/tasks")).json()["tasks"]
        assert len(managed) == 8 and sum(not task.get("valuesOmitted") for task in managed) == 2
        assert len((await http.get("/api/v1/dashboard/tasks")).json()["tasks"]) == 8


async def test_a_large_value_is_shown_without_being_decoded(tmp_path: Path) -> None:
    """3 MB of empty lists are 64 MB of Python's."""
    engine = open_engine(f"file://{tmp_path}?layout=tasks")
    await engine.open()
    payload = b"[" + b",".join([b"[]"] * 1_000_000) + b"]"
    await engine.add([new(1, payload=payload, queue="default")])
    await engine.close()
    async with in_process(Client(open_engine(f"file://{tmp_path}?layout=tasks"))) as http:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for path in (
            f"/api/v1/tasks/{task_id(1)}",
            f"/api/tasks/{task_id(1)}",
            f"/api/v1/dashboard/tasks/{task_id(1)}",
        ):
            assert payload in (await http.get(path)).content
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown < 40, f"{grown:.0f} MB"


def test_claims_grow_while_tasks_are_small() -> None:
    sizes = ClaimSizes(MemoryEngine())
    assert sizes.limit(10_000) == 256
    for _ in range(10):
        sizes.claimed([])
    assert (sizes.limit(10_000), sizes.limit(5), sizes.limit(0)) == (256, 5, 0)


async def test_a_worker_that_holds_much_costs_little(engine: Watched) -> None:
    async with in_process(Client(engine)) as http:
        worker = (await http.post("/internal/workers/register", json={"capacity": 100})).json()["worker_id"]
        held = list[str]()
        while tasks := (await http.post(f"/internal/workers/{worker}/poll", json={"available_capacity": 100})).json():
            held += [task["task_id"] for task in tasks["tasks"]]
            if not tasks["tasks"]:
                break
        assert len(held) == NUMBER
        engine.largest = 0
        beat = await http.post(f"/internal/workers/{worker}/heartbeat", json={"current_tasks": held})
        assert beat.json() == {"acknowledged": True, "drain": False, "lost": []}
        assert engine.largest <= LARGE
    limits = TimeLimits(Client(engine))
    limits.watch([task for task in await engine.get(held) if task is not None])
    try:
        assert sum(len(task.payload) for _, task in limits.attempts.values()) < SIZE
    finally:
        limits.close()


class Apart(MemoryEngine):
    """Keeps values apart, and counts the tasks whose values were read."""

    read = 0

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await self.with_values(
            await super().find(where, limit=limit, after=after, created_before=created_before)
        )

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        self.read += len(ids)
        return await super().get(ids)

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await super().find(where, limit=limit, after=after, created_before=created_before)

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        return await super().get(ids)

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        self.read += len(tasks)
        return list(tasks)


async def test_what_needs_no_values_reads_none() -> None:
    """Ten thousand tasks may be steered at once, and each may have a large payload."""
    engine, number = Apart(), 600
    await engine.add([new(n, queue="default") for n in range(number)])
    made = await create_token(engine, "ours", [Scope.ADMIN], now=0.0, queues=["default"])
    ids = [task_id(n) for n in range(number)]
    async with in_process(Client(engine)) as http:
        http.headers["authorization"] = f"Bearer {made.secret}"
        worker = (await http.post("/internal/workers/register", json={})).json()["worker_id"]
        results = [{"task_id": each, "status": "completed"} for each in ids]
        for path, body, told in (
            (f"/internal/workers/{worker}/result", {"results": results}, None),
            ("/api/v1/dashboard/act", {"action": "cancel", "ids": ids}, {"done": number}),
            ("/api/v1/dashboard/act", {"action": "cancel", "ids": ids}, {"done": 0}),
            ("/api/v1/tasks/replay", {"limit": 550}, {"replayed": 550, "more": True}),
            ("/api/v1/tasks/replay", {"limit": 50}, {"replayed": 50, "more": False}),
            ("/api/v1/dashboard/act", {"action": "cancel", "filter": {}}, {"done": number}),
            ("/api/v1/dashboard/cleanup", {"older_than": 0, "status": ["cancelled"]}, {"deleted": number}),
        ):
            engine.read = 0
            answer = await http.post(path, json=body)
            assert answer.status_code == 200
            assert told is None or answer.json() | told == answer.json()
            assert engine.read == 0, (path, body)


async def test_reading_many_tasks_holds_few_payloads(engine: Watched) -> None:
    """A batch of results, and acting on many tasks by their ids or by a filter."""
    ids = [task_id(n) for n in range(NUMBER)]
    made = await create_token(engine, "ours", [Scope.ADMIN], now=0.0, queues=["default"])
    async with in_process(Client(engine)) as http:
        http.headers["authorization"] = f"Bearer {made.secret}"
        worker = (await http.post("/internal/workers/register", json={})).json()["worker_id"]
        results = [{"task_id": each, "status": "completed"} for each in ids]
        for path, body in (
            (f"/internal/workers/{worker}/result", {"results": results}),
            ("/api/v1/dashboard/act", {"action": "cancel", "ids": ids}),
            ("/api/v1/dashboard/act", {"action": "cancel", "ids": ids}),
            ("/api/v1/tasks/replay", {"limit": 500}),
            ("/api/v1/dashboard/act", {"action": "cancel", "filter": {}}),
            ("/api/v1/dashboard/cleanup", {"older_than": 0, "status": ["cancelled"]}),
        ):
            engine.largest = 0
            assert (await http.post(path, json=body)).status_code == 200
            assert 0 < engine.largest <= LARGE, (path, body)


async def test_submitting_known_keys_again_holds_few_payloads(engine: Watched) -> None:
    client = Client(engine)
    tasks = [client.new_task("t", VALUE, idempotency_key=str(n)) for n in range(NUMBER)]
    first = await client.submit_many(tasks)
    engine.largest = 0
    again = await client.submit_many(tasks)
    assert [each.id for each in again] == [each.id for each in first] and not any(each.new for each in again)
    assert 0 < engine.largest <= LARGE
    other = [*tasks[:-1], client.new_task("t", b"1", idempotency_key=str(NUMBER - 1))]
    with pytest.raises(KeyReused):
        await client.submit_many(other)
    async with in_process(client) as http:
        engine.largest = 0
        known = [{"task_type": "t", "parameters": {}, "idempotency_key": f"k{n}"} for n in range(NUMBER)]
        for new in (NUMBER, 0):
            answer = await http.post("/api/v1/tasks/bulk", json={"tasks": known})
            assert answer.json()["new"] == new
        assert engine.largest <= LARGE


async def test_small_values_before_large_ones_do_not_raise_the_number_read_at_once() -> None:
    """The sizes of values are not known before they are read."""

    class Large(MemoryEngine):
        payload_limit = 16 * 1024 * 1024
        numbers: ClassVar[list[int]] = []

        async def get(self, ids: Sequence[str]) -> list[Task | None]:
            self.numbers.append(len(ids))
            return await super().get(ids)

    engine = Large()
    await engine.add([new(n) for n in range(1000)])
    await engine.add([new(n, payload=b'"' + b"x" * 1024 * 1024 + b'"') for n in (1000, 1010)])
    await engine.get_without_values([task_id(n) for n in range(1500)])
    assert max(engine.numbers) <= 64 and engine.numbers[-2] <= 8  # 16 MiB each in the worst case; then what was seen


async def test_small_values_are_read_many_at_a_time() -> None:
    """One by one would cost a trip each."""

    class Counting(MemoryEngine):
        reads = 0

        async def get(self, ids: Sequence[str]) -> list[Task | None]:
            self.reads += 1
            return await super().get(ids)

    engine = Counting()
    await engine.add([new(n, queue="default") for n in range(1000)])
    found = await engine.get_without_values([task_id(n) for n in range(1200)])
    assert [task and task.id for task in found] == [*(task_id(n) for n in range(1000)), *[None] * 200]
    assert engine.reads == 3


async def test_a_long_history_of_a_large_task_leaves_out_what_is_old() -> None:
    engine = MemoryEngine()
    await engine.add([new(0, payload=VALUE)])
    for _ in range(600):
        await engine.apply([release(await claim_one(engine), log="x" * 16_000)])
    async with in_process(Client(engine)) as http:
        for path in ("/api/v1/tasks", "/api/v1/dashboard/tasks"):
            answer = await http.get(f"{path}/{task_id(0)}/history")
            events = answer.json()["events"]
            assert (len(events), events[0]["log"], events[2]["log"]) == (1201, None, None)
            assert events[-1]["log"] == "x" * 16_000
            assert len(answer.content) < 2 * RESPONSE_BYTES + 1201 * 1024
        assert (events[0]["task"], events[-1]["task"]["payload"]) == (None, msgspec.json.decode(VALUE))
