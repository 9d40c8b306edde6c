"""What a page writes into a bucket, checked by the engine that shares it: no server, a real store, both layouts."""

import asyncio
import json
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Error

from qo.audit import AuditRecord, compact_audit, read_audit
from qo.client import Client
from qo.clock import system_clock
from qo.damage import check_seal, sealed
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.object_per_task.keys import index_key, task_key
from qo.errors import LeaseLost
from qo.model import FINISHED, Status, Task
from qo.model.life_cycle import GONE, REFUSED, STEPS, outcome
from tests.dashboard.chromium import Tab
from tests.dashboard.zero_queue import Source, fill, opened, task_in
from tests.dashboard.zero_store import READER, Place, Store
from tests.engines.below import below

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("_keys")]
ACTIONS = ("cancel", "replay", "archive", "delete")
EXPECTED = {
    (action, status): outcome(next(step for step in STEPS if step.name == action), status)
    for action, status in product(ACTIONS, Status)
}


@pytest_asyncio.fixture(loop_scope="session")
async def source(tab: Tab, place: Place) -> Source:
    return await Source.on(tab.page, place, place.link("--write"))


async def actions(client: Client) -> list[AuditRecord]:
    """What the page wrote into the audit trail, also once it is merged."""
    before = (await read_audit(client.engine, now=system_clock() + 60, limit=100)).records
    await compact_audit(client.engine, system_clock())
    assert (await read_audit(client.engine, now=system_clock() + 60, limit=100)).records == before
    return [record for record in before if record.actor == "page"]  # without the commands that made its links


async def check(place: Place, client: Client, tasks: list[Task]) -> None:
    """The index is exactly what the tasks need, and `repair` finds nothing to do."""
    if place.layout != "tasks":
        return
    engine = below(client.store)  # itself, or behind one that keeps large values aside
    assert isinstance(engine, ObjectPerTaskEngine)
    assert await engine.repair() == 0
    assert not engine.quarantined
    entries = {key for key in place.objects() if key.startswith(("ready/", "leases/"))}
    assert entries == {key for task in tasks if (key := index_key(task))}


async def test_what_a_page_rewrites_has_its_checksum_and_the_fields_of_a_newer_build(
    place: Place, client: Client, source: Source
) -> None:
    task_id = await task_in(client, Status.PENDING)
    key = task_key(task_id) if place.layout == "tasks" else "queue.json"

    def record_in(document: Any) -> Any:
        return document if place.layout == "tasks" else document["tasks"][0]

    document = json.loads(place.read(key))
    document["more"] = {"a": ["kept"]}
    record = record_in(document)
    record["extra"], record["task"]["extra"] = "kept", ["kept", 1]
    record["events"] = [
        event | {"extra": "kept"} if isinstance(event, dict) else [*event, "kept"] for event in record["events"]
    ]
    first = record["events"][0]
    place.put(key, sealed(json.dumps(document).encode()))
    answer = await source.get("return source.act('cancel', {ids: [argument]});", task_id)
    assert answer["done"] == 1
    data = place.read(key)
    assert check_seal(data), "it carries a checksum, and its own"
    document, record = json.loads(data), record_in(json.loads(data))
    assert record["task"]["status"] == "cancelled"
    assert document["more"] == {"a": ["kept"]}
    assert (record["extra"], record["task"]["extra"], record["events"][0]) == ("kept", ["kept", 1], first)
    task = await client.get(task_id)
    assert task is not None and task.status is Status.CANCELLED


async def test_every_action_does_to_every_status_what_the_model_says(place: Place, client: Client, tab: Tab) -> None:
    """Under a policy for operators, which the store itself enforces."""
    source = await Source.on(tab.page, place, place.narrow_link("--write"))
    for action in ACTIONS:
        order = sorted(Status, key=lambda status: (status is Status.PENDING, status))  # what waits would be taken
        ids = {status: await task_in(client, status, type=action) for status in order}
        script = "return source.act(argument[0], {ids: argument[1]});"
        answer = await source.get(script, [action, list(ids.values())])
        refused = {each["id"]: each["why"] for each in answer["refused"]}
        for status, task_id in ids.items():
            expected, task = EXPECTED[action, status], await client.get(task_id)
            assert (task_id in refused) == (expected == REFUSED), (action, status, refused)
            if expected == GONE:
                assert task is None
            else:
                assert task is not None
                assert task.status == (status if expected == REFUSED else expected), (action, status)
        assert answer["done"] == sum(EXPECTED[action, status] != REFUSED for status in Status)
        assert all(status in why for status, task_id in ids.items() if (why := refused.get(task_id)))
    await check(place, client, await client.list(limit=200))


async def test_a_replayed_task_is_claimed_and_its_whole_past_is_kept(
    place: Place, client: Client, source: Source
) -> None:
    task_id = await task_in(client, Status.FAILED, payload={"n": 9_007_199_254_740_993})
    before = await client.get(task_id)
    assert before is not None
    await source.get("return source.act('replay', {ids: [argument]});", task_id)
    (task,) = await client.dequeue("work")
    assert task.id == task_id and task.attempt == 2 and task.failures == 0
    assert (task.payload, task.created_at, task.retry) == (before.payload, before.created_at, before.retry)
    assert abs(task.available_at - system_clock()) < 60
    await client.ack(task, "done")
    statuses = [event.status for event in await client.history(task_id)]
    assert statuses == ["pending", "running", "failed", "pending", "running", "completed"]
    await check(place, client, await client.list(limit=200))


async def test_a_worker_whose_task_was_cancelled_on_the_page_has_lost_its_lease(client: Client, source: Source) -> None:
    task_id = await task_in(client, Status.PENDING)
    (task,) = await client.dequeue("work")
    await source.get("return source.act('cancel', {ids: [argument]});", task_id)
    with pytest.raises(LeaseLost):
        await client.ack(task, "too late")
    ended = await client.get(task_id)
    assert ended is not None and ended.status is Status.CANCELLED


async def test_a_page_and_workers_that_race_for_the_same_tasks_lose_none(
    place: Place, client: Client, source: Source
) -> None:
    ids = [(await client.enqueue("race", number, queue="main")).id for number in range(24)]
    acting = asyncio.create_task(source.get("return source.act('cancel', {ids: argument});", ids))
    done: list[str] = []
    async with opened(place) as other:
        while not acting.done():
            for held in await other.dequeue("race", batch_size=4, lease=600):
                with suppress(LeaseLost):  # the page was faster
                    await other.ack(held, "won")
                    done.append(held.id)
    answer = await acting
    tasks = [found for task_id in ids if (found := await client.get(task_id))]
    by_status = {status: {task.id for task in tasks if task.status is status} for status in Status}
    refused = {each["id"] for each in answer["refused"]}
    assert by_status[Status.COMPLETED] == set(done) == refused
    assert len(by_status[Status.CANCELLED]) == answer["done"] == len(ids) - len(done)
    await check(place, client, tasks)


async def test_two_pages_that_do_the_same_do_it_once(client: Client, source: Source) -> None:
    ids = [await task_in(client, Status.FAILED) for _ in range(6)]
    script = """
      const {open} = await import(new URL('sources/bucket.js', document.baseURI));
      const other = await open({credentials: argument.fragment});
      return Promise.all([source, other].map((each) => each.act('replay', {ids: argument.ids})));
    """
    answers = await source.get(script, {"ids": ids, "fragment": source.fragment})
    assert sum(answer["done"] for answer in answers) == len(ids)
    assert sum(len(answer["refused"]) for answer in answers) == len(ids)
    for task_id in ids:
        assert [event.status for event in await client.history(task_id)].count(Status.PENDING) == 2


async def test_all_that_match_are_acted_upon_and_no_others(client: Client, source: Source) -> None:
    failed = [await task_in(client, Status.FAILED, type="mail") for _ in range(3)]
    others = [await task_in(client, Status.FAILED, type="crawl"), await task_in(client, Status.COMPLETED, type="mail")]
    answer = await source.get("return source.act('replay', {filter: {type: 'mail'}});")
    assert answer == {"done": 3, "refused": []}
    states = [task.status for task_id in failed + others if (task := await client.get(task_id))]
    assert states == [Status.PENDING] * 3 + [Status.FAILED, Status.COMPLETED]
    ((who, record),) = [((each.actor, each.who), each) for each in await actions(client)]
    assert who[0] == "page" and who[1] and (record.action, record.number) == ("replay", 3)
    assert set(record.task_ids) == set(failed) and record.target == "type mail, status failed cancelled"


async def test_controls_set_on_the_page_are_what_workers_obey(place: Place, client: Client, tab: Tab) -> None:
    source = await Source.on(tab.page, place, place.narrow_link("--write"))
    await client.controls.pause(queues=["slow"])
    await source.get("return source.control('pause', {queue: 'mail'});")
    await source.get("return source.control('pause', {type: 'constructor'});")
    await source.get("return source.control('rate-limit', {type: 'crawl', limit: 2.5});")
    await source.get("return source.control('rate-limit', {limit: 10});")
    await source.get("return source.control('max-types', {max_types: 25});")
    await source.get("return source.control('drain', {worker: 'crane-7'});")
    control = await client.controls.read()
    assert control.paused_queues == {"slow", "mail"} and control.paused_types == {"constructor"}
    assert control.rate_limits == {"crawl": 2.5} and control.rate_limit == 10 and not control.paused
    assert control.draining == {"crane-7"} and control.max_types == 25
    await source.get("return source.control('pause');")
    assert (await client.controls.read()).paused
    await source.get("return source.control('resume', {queue: 'slow'});")
    control = await client.controls.read()
    assert control.paused_queues == {"mail"} and control.paused
    await source.get("return source.control('resume');")
    control = await client.controls.read()
    assert not control.paused and not control.paused_queues and not control.paused_types
    wrong = await source.ask("return source.control('rate-limit', {limit: -1});")
    assert wrong.code == "refused"
    for number in (-1, 10_001, 2.5, "", None):
        wrong = await source.ask("return source.control('max-types', {max_types: argument});", number)
        assert wrong.code == "refused" and "from 0 to 10,000" in wrong.message
    assert (await client.controls.read()).max_types == 25
    done = [(each.action, each.target) for each in await actions(client)]  # with rights to create a record and no more
    assert sorted(done) == sorted(
        [
            ("pause", "queue mail"),
            ("pause", "type constructor"),
            ("limit", "type crawl, limit 2.5"),
            ("limit", "limit 10"),
            ("limit", "25 types"),
            ("drain", "worker crane-7"),
            ("pause", ""),
            ("resume", "queue slow"),
            ("resume", ""),
        ]
    )


async def test_clean_up_deletes_what_ended_long_enough_ago(client: Client, source: Source) -> None:
    ids = await fill(client)
    young = await source.get("return source.control('cleanup', {older_than: 3600, status: ['completed', 'failed']});")
    assert young["deleted"] == 0
    old = await source.get("return source.control('cleanup', {older_than: 0, status: ['completed', 'failed']});")
    assert old["deleted"] == 2
    left = {status for status, task_id in ids.items() if await client.get(task_id)}
    assert left == set(Status) - {Status.COMPLETED, Status.FAILED}


async def test_without_leave_to_write_nothing_is_written(place: Place, client: Client, tab: Tab) -> None:
    """By the page's own rule; and if the page is changed, by the store's."""
    ids = await fill(client)
    await client.recorder.flush()  # so that no statistics are written during the test
    links = [place.link("--write", keys=READER), place.narrow_link()]  # a command writes a record of each
    before = place.objects()
    looking = await Source.on(tab.page, place, place.link(keys=READER))
    answer = await looking.ask("return source.act('cancel', {ids: argument});", [ids[Status.PENDING]])
    assert answer.code == "not_allowed" and "read-only" in answer.message

    for link in links:
        forced = Source(tab.page, link)
        script = "source.can.write = true; return source.act(argument[0], {ids: [argument[1]]});"
        for action, status in (("cancel", Status.PENDING), ("replay", Status.FAILED), ("delete", Status.COMPLETED)):
            refusal = await forced.ask(script, [action, ids[status]])
            why = refusal.message or refusal.value["refused"][0]["why"]
            assert "may not write" in why, why
        switch = await forced.ask("source.can.write = true; return source.control('pause');")
        assert switch.code == "not_allowed"
    assert place.objects() == before
    for status, task_id in ids.items():
        task = await client.get(task_id)
        assert task is not None and task.status is status


async def test_an_operator_cannot_change_the_page_itself(place: Place, tab: Tab) -> None:
    """What could write into ui/ would run in everyone's browser."""
    source = await Source.on(tab.page, place, place.narrow_link("--write"))
    script = """
      const {S3} = await import(new URL('sources/s3.js', document.baseURI));
      const {parseFragment} = await import(new URL('sources/credentials.js', document.baseURI));
      const s3 = new S3(parseFragment(argument));
      return Promise.all(['ui/main.js', 'ui/new.js'].map((key) => s3.put(key, 'x').catch((error) => error.code)));
    """
    assert await source.get(script, source.fragment) == ["not_allowed", "not_allowed"]


async def test_a_deleted_task_leaves_a_grave_that_keeps_its_place(store: Store, tab: Tab) -> None:
    place = store.place()
    source = await Source.on(tab.page, place, place.link("--write"))
    async with opened(place) as client:
        task_id = await task_in(client, Status.COMPLETED)
        await source.get("return source.act('delete', {ids: [argument]});", task_id)
        assert await client.get(task_id) is None
        assert task_key(task_id) in place.objects()
        again = await source.get("return source.act('delete', {ids: [argument]});", task_id)
        assert again["refused"] == [{"id": task_id, "why": "there is no such task"}]
        gone = await source.ask("return source.task(argument);", task_id)
        assert gone.code == "not_found"


async def test_a_page_leaves_a_format_alone_that_it_does_not_know(store: Store, tab: Tab) -> None:
    place = store.place()
    async with opened(place) as client:
        id_ = await task_in(client, Status.PENDING)
    source = await Source.on(tab.page, place, place.link("--write"))
    stored = {key: place.read(key) for key in place.objects()}
    await source.get("window.before = source")
    place.put("format.json", {"format": 3, "since": 2, "qo": "9.9.0"})
    assert (await source.ask("return source.task(argument)", id_)).code is None, "a step that only adds is no reason"
    place.put("format.json", {"format": 3, "since": 3, "qo": "9.9.0"})
    with pytest.raises(Error, match=r"newer qo .*9\.9\.0"):
        await source.ask("return source.overview()")
    refused = """async (id) => {
      const now = performance.now.bind(performance);
      performance.now = () => now() + 10_000;
      const doings = [() => before.overview(), () => before.control('pause'), () => before.act('cancel', {ids: [id]})];
      return Promise.all(doings.map((doing) => doing().then((said) => JSON.stringify(said), (error) => error.message)));
    }"""
    for said in await tab.page.evaluate(refused, id_):
        assert "9.9.0" in said
    stored["format.json"] = place.read("format.json")
    assert {key: place.read(key) for key in place.objects()} == stored


async def test_the_table_of_outcomes_is_not_empty() -> None:
    outcomes: set[Any] = set(EXPECTED.values())
    assert {GONE, REFUSED, "pending", "cancelled", "archived"} <= outcomes
    assert FINISHED
