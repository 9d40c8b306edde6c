"""Tasks in: every option, every refusal, one task a key."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qo.client import Client, Priority, Settings, TaskHandle, connect
from qo.codec import encode_value
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting, InvalidTask, KeyReused, QoError
from qo.model import Filter, PromotionTimes, RetryPolicy, Status, check_id, derived_id
from qo.testing import ManualClock

ID = "0a0a0a0a-0000-8000-8000-000000000000"


async def count(client: Client) -> int:
    return len(await client.list(limit=999))


async def test_a_submitted_task_is_in_the_store_with_its_payload(client: Client, clock: ManualClock) -> None:
    submitted = await client.enqueue("send_email", {"to": "a@example.com"})
    assert submitted.new
    assert check_id(submitted.id) in repr(submitted)
    task = await client.get(submitted.id)
    assert task is not None
    assert (task.type, task.queue, task.payload, task.priority) == (
        "send_email",
        "default",
        b'{"to":"a@example.com"}',
        6,
    )
    assert (task.status, task.created_at, task.available_at) == (Status.PENDING, clock.now, clock.now)


async def test_every_option_reaches_the_task(client: Client, clock: ManualClock) -> None:
    policy = RetryPolicy(initial=3.0, jitter=0.0)
    submitted = await client.enqueue(
        "t", b"\x00raw", id=ID, queue="mail", priority="high", needs=["ssd", "gpu", "gpu"], timeout=timedelta(0, 120),
        max_retries=7, retry=policy, delay=timedelta(seconds=5), trace_id="trace",
    )  # fmt: skip
    task = await client.get(submitted.id)
    assert task is not None
    assert (task.id, task.queue, task.payload, task.priority) == (ID, "mail", b"\x00raw", 0)
    assert (task.needs, task.timeout, task.max_retries, task.retry) == (("gpu", "ssd"), 120.0, 7, policy)
    assert (task.available_at, task.trace_id) == (clock.now + 5, "trace")


@pytest.mark.parametrize(
    "moment",
    [
        1_900_000_000,
        1.9e9,
        "2030-03-17T17:46:40Z",
        "2030-03-17T17:46:40",
        datetime(2030, 3, 17, 17, 46, 40, tzinfo=UTC),
    ],
    ids=str,
)
async def test_an_instant_is_taken_as_people_write_it(client: Client, moment: Any) -> None:
    task = await client.get((await client.enqueue("t", run_at=moment)).id)
    assert task is not None
    assert task.available_at == 1.9e9


BAD: list[tuple[str, dict[str, Any]]] = [
    ("type", {"type": "not a name"}),
    ("type", {"type": ""}),
    ("payload", {"payload": float("nan")}),
    ("payload", {"payload": {"n": 2**63}}),
    ("payload", {"payload": "\ud800"}),
    ("payload", {"payload": "a\x00"}),
    ("payload", {"payload": {1: 2}}),
    ("payload", {"payload": object()}),
    ("payload", {"payload": "x" * 262_143}),
    ("payload", {"payload": b"x" * 262_144}),
    ("id", {"id": "../x"}),
    ("queue", {"queue": "a/b"}),
    ("queue", {"queue": "a/b", "idempotency_key": "k"}),
    ("priority", {"priority": "urgent"}),
    ("priority", {"priority": 10}),
    ("needs", {"needs": "gpu"}),
    ("needs", {"needs": None}),
    ("needs", {"needs": ["a b"]}),
    ("needs", {"needs": [5]}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": "5"}),
    ("timeout", {"timeout": timedelta(seconds=-1)}),
    ("max_retries", {"max_retries": -1}),
    ("retry.jitter", {"retry": RetryPolicy(jitter=2)}),
    ("delay", {"delay": -1}),
    ("delay", {"delay": float("inf")}),
    ("delay", {"delay": 60, "run_at": 4e9}),
    ("delay", {"delay": timedelta(minutes=1), "run_at": datetime(2100, 1, 1, tzinfo=UTC)}),
    ("run_at", {"run_at": "tomorrow"}),
    ("run_at", {"run_at": -5}),
    ("run_at", {"run_at": [1]}),
    ("idempotency_key", {"idempotency_key": ""}),
    ("idempotency_key", {"idempotency_key": "\ud800"}),
    ("idempotency_key", {"idempotency_key": 5}),
    ("trace_id", {"trace_id": "a\nb"}),
]


@pytest.mark.parametrize(("field", "options"), BAD, ids=lambda value: value if isinstance(value, str) else "")
async def test_bad_input_is_refused_by_its_field_and_nothing_is_stored(
    client: Client, field: str, options: dict[str, Any]
) -> None:
    given = {"type": "t", "payload": None} | options
    with pytest.raises(InvalidTask, match=f"^{field}: ") as caught:
        await client.enqueue(**given)
    assert caught.value.field == field
    assert await count(client) == 0


async def test_the_largest_payload_allowed_is_kept(client: Client) -> None:
    submitted = await client.enqueue("t", b"x" * 262_143)
    task = await client.get(submitted.id)
    assert task is not None
    assert len(task.payload) == 262_143


async def test_the_times_of_promotion_can_be_set(clock: ManualClock) -> None:
    times = PromotionTimes(low_to_medium=60, medium_to_high=900)
    async with Client(MemoryEngine(clock), Settings(ageing=times), clock=clock) as client:
        waiting: list[tuple[Priority, int]] = [("high", 0), ("medium", 900), ("low", 960), (3, 450)]
        for priority, waits in waiting:
            task = await client.get((await client.enqueue("t", priority=priority)).id)
            assert task is not None and task.rank == pytest.approx(clock.now + waits)
        with pytest.raises(InvalidTask, match="priority"):
            await client.enqueue("t", priority=11)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [Settings(ageing=float("nan")), Settings(ageing=-1), Settings(window=-1)], ids=str)
async def test_settings_that_would_confuse_the_order_are_refused_at_the_first_task(settings: Settings) -> None:
    async with connect("memory://", settings) as client:
        with pytest.raises(InvalidTask, match=r"^(ageing|window): "):
            await client.enqueue("t")


async def test_the_second_submission_of_a_key_gets_the_first_task(client: Client) -> None:
    first = await client.enqueue("t", 1, idempotency_key="order-17")
    second = await client.enqueue("t", 1, idempotency_key="order-17")
    assert (first.new, second.new) == (True, False)
    assert first.id == second.id == derived_id("default", "t", "order-17")
    task = await client.get(first.id)
    assert task is not None
    assert (task.payload, task.idempotency_key) == (b"1", "order-17")


@pytest.mark.parametrize("other", [{"queue": "other"}, {"type": "other"}], ids=str)
async def test_the_same_key_in_another_queue_or_type_is_another_task(client: Client, other: dict[str, Any]) -> None:
    here = await client.enqueue("t", idempotency_key="k")
    there = await client.enqueue(**{"type": "t", "idempotency_key": "k"} | other)
    assert here.id != there.id
    assert there.new


async def test_another_payload_under_a_key_is_an_error_that_names_the_task(client: Client) -> None:
    first = await client.enqueue("t", {"a": 1, "b": [1.5]}, idempotency_key="k")
    for payload in ({"a": 2, "b": [1.5]}, {"a": 1.0, "b": [1.5]}, {"a": True, "b": [1.5]}, None, b"raw"):
        with pytest.raises(
            KeyReused, match=f"'k' of t in queue default belongs to task {first.id}.*another payload"
        ) as it:
            await client.enqueue("t", payload, idempotency_key="k")
        assert it.value.task_id == first.id
    again = await client.enqueue("t", {"b": [1.5], "a": 1}, idempotency_key="k")
    assert (again.id, again.new) == (first.id, False)
    raw = await client.enqueue("t", b"\x00raw", idempotency_key="raw")
    assert (await client.enqueue("t", b"\x00raw", idempotency_key="raw")).id == raw.id
    assert await count(client) == 2


async def test_a_reused_key_hurts_no_other_submission(client: Client) -> None:
    await client.enqueue("t", 0, idempotency_key="k")
    others = [client.enqueue("t", n) for n in range(5)]
    reused, *answers = await asyncio.gather(
        client.enqueue("t", 1, idempotency_key="k"), *others, return_exceptions=True
    )
    assert isinstance(reused, KeyReused)
    assert all(isinstance(answer, TaskHandle) and answer.new for answer in answers)
    bulk = [client.new_task("t", encode_value(n), idempotency_key=key) for n, key in enumerate(("x", "k", "y"))]
    with pytest.raises(KeyReused):
        await client.submit_many(bulk)
    assert await count(client) == 8
    with pytest.raises(KeyReused):  # seen before anything is stored
        await client.submit_many([client.new_task("t", b"%d" % n, idempotency_key="z") for n in range(2)])
    assert await count(client) == 8


async def test_eight_racing_submissions_of_a_key_make_one_task(client: Client) -> None:
    answers = await asyncio.gather(*(client.enqueue("t", 1, idempotency_key="k") for n in range(8)))
    assert sorted(answer.new for answer in answers) == [False] * 7 + [True]
    assert await count(client) == 1


async def test_a_key_makes_room_after_its_window(client: Client, clock: ManualClock) -> None:
    first = await client.enqueue("t", 1, idempotency_key="k")
    await client.cancel(first.id)
    clock.advance(86_400)
    again = await client.enqueue("t", 2, idempotency_key="k")
    assert again.new and again.id != first.id
    assert [event.status.value for event in await client.history(first.id)] == ["pending", "cancelled"]
    assert (await client.enqueue("t", 2, idempotency_key="k")).id == again.id
    with pytest.raises(KeyReused, match=again.id):
        await client.enqueue("t", 1, idempotency_key="k")
    bulk = [client.new_task("t", b"2", idempotency_key="k") for _ in range(2)]
    assert [each.id for each in await client.submit_many(bulk)] == [again.id] * 2


async def test_of_one_id_in_a_bulk_the_first_is_taken_and_the_order_kept(client: Client, clock: ManualClock) -> None:
    def keyed(key: str, value: int) -> Any:
        return client.new_task("t", encode_value(value), idempotency_key=key)

    answers = await client.submit_many([keyed("a", 1), keyed("b", 2), keyed("a", 1), keyed("c", 4), keyed("a", 1)])
    assert [answer.new for answer in answers] == [True, True, False, True, False]
    assert answers[0].id == answers[2].id == answers[4].id
    clock.advance(1)
    order = [(await client.dequeue())[0].payload for _ in range(3)]
    assert order == [b"1", b"2", b"4"]
    assert [answer.new for answer in await client.submit_many([keyed("b", 2), keyed("d", 9)])] == [False, True]


async def test_a_bulk_larger_than_one_trip_lands_whole(client: Client) -> None:
    answers = await client.submit_many([client.new_task("t", b"null") for _ in range(2_050)])
    assert all(answer.new for answer in answers)
    assert (await client.stats())["pending"] == 2_050
    assert await client.submit_many([]) == []


async def test_concurrent_submissions_all_land(client: Client) -> None:
    answers = await asyncio.gather(*(client.enqueue("t", n) for n in range(200)))
    assert len({answer.id for answer in answers}) == 200
    assert await count(client) == 200


async def test_a_producer_submits_to_its_queue(client: Client) -> None:
    producer = await client.producer("mail")
    plain = await client.get((await producer.enqueue({"n": 1})).id)
    typed = await client.get((await producer.enqueue(type="letter", priority="low")).id)
    assert plain is not None
    assert typed is not None
    assert (plain.queue, plain.type) == ("mail", "mail")
    assert (typed.queue, typed.type, typed.priority) == ("mail", "letter", 9)
    with pytest.raises(InvalidTask, match=r"^queue: "):
        await client.producer("a/b")


async def test_what_was_submitted_is_there_after_closing_and_opening_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'qo.db'}"
    async with connect(url) as client:
        kept = await client.enqueue("t", 1)
    async with connect(url) as client:
        assert [task.id for task in await client.list(Filter(types=("t",)))] == [kept.id]


async def test_closing_waits_for_what_is_under_way(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'qo.db'}"
    client = await connect(url).open()
    asking = asyncio.gather(*(client.enqueue("t", n) for n in range(50)))
    await asyncio.sleep(0)
    await client.close()
    await asking
    async with connect(url) as client:
        assert (await client.stats())["pending"] == 50


@pytest.mark.parametrize("url", ["", "qo.db", "ftp://host/x", "://"])
def test_a_url_that_names_no_queue_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting, match=r"sqlite://"):
        connect(url)


def test_every_error_of_qo_can_be_caught_as_one() -> None:
    assert issubclass(InvalidTask, QoError)
