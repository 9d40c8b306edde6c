"""Unique tasks: at most one with the same arguments, and what becomes of the others."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from qo import DuplicateTask, KeyReused, Unique
from qo.app import App
from qo.client import Client
from qo.encryption import Encrypted, EncryptedEngine
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting, InvalidTask
from qo.model import Status, Task, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one

ARGS = Unique()


async def stored(client: Client, task_id: str) -> Task:
    task = await client.get(task_id)
    assert task is not None
    return task


async def run_one(client: Client) -> None:
    await client.engine.apply([complete(await claim_one(client.engine))])


async def test_the_same_arguments_are_submitted_once_until_the_task_has_finished(client: Client) -> None:
    first = await client.enqueue("sync", {"customer": 1, "full": True}, unique=ARGS)
    again = await client.enqueue("sync", {"full": True, "customer": 1}, unique=ARGS)
    other = await client.enqueue("sync", {"customer": 2, "full": True}, unique=ARGS)
    assert (again.id, again.new, other.new) == (first.id, False, True)
    await run_one(client)
    await run_one(client)
    later = await client.enqueue("sync", {"customer": 1, "full": True}, unique=ARGS)
    assert later.new and later.id != first.id


async def test_chosen_arguments_decide(client: Client) -> None:
    unique = Unique(by=("customer",))
    first = await client.enqueue("sync", {"customer": 1, "full": True}, unique=unique)
    again = await client.enqueue("sync", {"customer": 1, "full": False}, unique=unique)
    assert (again.id, again.new) == (first.id, False)
    assert (await stored(client, first.id)).payload == b'{"customer":1,"full":true}'


async def test_queue_and_type_are_the_scope(client: Client) -> None:
    submitted = [
        await client.enqueue("sync", {"n": 1}, unique=ARGS),
        await client.enqueue("sync", {"n": 1}, unique=ARGS, queue="other"),
        await client.enqueue("report", {"n": 1}, unique=ARGS),
        await client.enqueue("sync", {"n": 1}),
    ]
    assert all(each.new for each in submitted)


async def test_a_task_is_unique_within_a_time_after_it_has_finished(client: Client, clock: ManualClock) -> None:
    unique = Unique(within=timedelta(hours=1))
    first = await client.enqueue("sync", {"n": 1}, unique=unique)
    await run_one(client)
    assert not (await client.enqueue("sync", {"n": 1}, unique=unique)).new
    clock.advance(3600)
    later = await client.enqueue("sync", {"n": 1}, unique=unique)
    assert later.new and later.id != first.id


async def test_a_task_that_is_unique_until_its_start_may_wait_behind_itself(client: Client) -> None:
    unique = Unique(until="started")
    first = await client.enqueue("sync", {"n": 1}, unique=unique)
    await claim_one(client.engine)
    second = await client.enqueue("sync", {"n": 1}, unique=unique)
    third = await client.enqueue("sync", {"n": 1}, unique=unique)
    assert second.new and second.id != first.id and (third.id, third.new) == (second.id, False)


async def test_a_duplicate_can_be_an_error(client: Client) -> None:
    unique = Unique(on_duplicate="raise")
    first = await client.enqueue("sync", {"n": 1}, unique=unique)
    with pytest.raises(DuplicateTask, match=first.id) as refused:
        await client.enqueue("sync", {"n": 1}, unique=unique)
    assert refused.value.task_id == first.id and isinstance(refused.value, KeyReused)


async def test_the_latest_submission_replaces_the_waiting_task(client: Client, clock: ManualClock) -> None:
    unique = Unique(by=("customer",), on_duplicate="replace")
    first = await client.enqueue("sync", {"customer": 1, "n": 1}, unique=unique, delay=10)
    clock.advance(9)
    again = await client.enqueue("sync", {"customer": 1, "n": 2}, unique=unique, delay=10, priority="high")
    task = await stored(client, first.id)
    assert (again.id, again.new) == (first.id, False)
    assert (task.payload, task.priority, task.available_at) == (b'{"customer":1,"n":2}', 0, clock.now + 10)
    clock.advance(9)
    assert await claim(client.engine) == []
    clock.advance(1)
    taken = await claim_one(client.engine)
    assert taken.payload == b'{"customer":1,"n":2}'
    kept = await client.enqueue("sync", {"customer": 1, "n": 3}, unique=unique)
    assert (kept.id, kept.new, (await stored(client, kept.id)).payload) == (first.id, False, task.payload)
    await client.engine.apply([complete(taken)])
    assert (await client.enqueue("sync", {"customer": 1, "n": 4}, unique=unique)).new


async def test_a_task_that_has_started_is_followed_by_the_replacement(client: Client) -> None:
    unique = Unique(by=("customer",), until="started", on_duplicate="replace")
    first = await client.enqueue("sync", {"customer": 1, "n": 1}, unique=unique)
    await claim_one(client.engine)
    second = await client.enqueue("sync", {"customer": 1, "n": 2}, unique=unique)
    third = await client.enqueue("sync", {"customer": 1, "n": 3}, unique=unique)
    assert second.new and second.id != first.id and (third.id, third.new) == (second.id, False)
    assert (await stored(client, second.id)).payload == b'{"customer":1,"n":3}'


async def test_many_concurrent_submissions_are_one_task(client: Client) -> None:
    unique = Unique(by=("customer",), on_duplicate="replace")
    handles = await asyncio.gather(
        *(client.enqueue("sync", {"customer": 1, "n": n}, unique=unique) for n in range(30)),
        *(client.enqueue("report", {"n": 1}, unique=ARGS) for _ in range(30)),
    )
    assert len({handle.id for handle in handles}) == 2
    assert sum(handle.new for handle in handles) == 2
    assert len(await client.list(limit=99)) == 2


async def test_a_batch_with_duplicates_stores_each_once(client: Client) -> None:
    def new(n: int, unique: Unique) -> Any:
        return client.new_task("sync", b'{"customer":1,"n":%d}' % n, unique=unique)

    kept = await client.submit_many([new(1, Unique(by=("customer",))), new(2, Unique(by=("customer",)))])
    assert [handle.new for handle in kept] == [True, False]
    assert (await stored(client, kept[0].id)).payload == b'{"customer":1,"n":1}'
    latest = Unique(by=("customer",), on_duplicate="replace")
    replaced = await client.submit_many([new(3, latest), new(4, latest)])
    assert {handle.id for handle in replaced} == {kept[0].id}
    assert (await stored(client, kept[0].id)).payload == b'{"customer":1,"n":4}'


async def test_an_encrypted_task_can_be_replaced(clock: ManualClock) -> None:
    engine = MemoryEngine(clock)
    unique = Unique(by=("customer",), on_duplicate="replace")
    async with Client(EncryptedEngine(engine, Encrypted(keys=[b"k" * 32])), clock=clock) as client:
        first = await client.enqueue("sync", {"customer": 1, "secret": "a"}, unique=unique)
        await client.enqueue("sync", {"customer": 1, "secret": "b"}, unique=unique)
        assert (await stored(client, first.id)).payload == b'{"customer":1,"secret":"b"}'
        (raw,) = await engine.get([first.id])
        assert raw is not None and b"secret" not in raw.payload


@pytest.mark.parametrize(
    ("unique", "option"),
    [
        (Unique(by=()), "unique.by"),
        (Unique(by="customer"), "unique.by"),
        (Unique(by=("missing",)), "unique.by"),
        (Unique(within=0), "unique.within"),
        (Unique(within=-1.0), "unique.within"),
        (Unique(until="stopped"), "unique.until"),  # type: ignore[arg-type]
        (Unique(on_duplicate="drop"), "unique.on_duplicate"),  # type: ignore[arg-type]
        ({"by": "args"}, "unique"),
    ],
)
async def test_a_wrong_option_is_named(client: Client, unique: Any, option: str) -> None:
    with pytest.raises(InvalidTask) as refused:
        await client.enqueue("sync", {"n": 1}, unique=unique)
    assert refused.value.field == option


async def test_unique_excludes_a_key_of_ones_own(client: Client) -> None:
    with pytest.raises(InvalidTask, match="idempotency_key"):
        await client.enqueue("sync", {"n": 1}, unique=ARGS, idempotency_key="k")


def test_raw_payloads_are_unique_as_a_whole(app: App) -> None:
    first, again = app.enqueue("blob", b"\x00\x01", unique=ARGS), app.enqueue("blob", b"\x00\x01", unique=ARGS)
    assert (again.id, again.new) == (first.id, False)
    with pytest.raises(InvalidTask, match=r"unique\.by"):
        app.enqueue("blob", b"\x00\x01", unique=Unique(by=("n",)))


def test_a_declared_task_is_unique(app: App) -> None:
    @app.task(unique=Unique(by=("customer",), on_duplicate="replace"))
    def sync(customer: int, note: str = "") -> None: ...

    first = sync.enqueue(1, "a")
    assert sync.enqueue(customer=1, note="b").id == first.id
    assert sync.enqueue(2).new
    assert sync.using(unique=Unique(by=("customer", "note"))).enqueue(1, "c").new
    task = app.get(first.id)
    assert task is not None and (task.payload, task.status) == (b'{"customer":1,"note":"b"}', Status.PENDING)


def test_a_declaration_names_arguments_that_exist(app: App) -> None:
    with pytest.raises(InvalidSetting, match="client"):

        @app.task(unique=Unique(by=("client",)))
        def sync(customer: int) -> None: ...
