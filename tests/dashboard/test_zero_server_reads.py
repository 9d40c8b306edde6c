"""What a page reads out of a bucket: all of it, in order, in a bounded number of requests, whatever lies there."""

import json
import os
from collections import Counter
from typing import Any

import msgspec
import pytest

from qo.cli.rich_output import by_type
from qo.client import Client
from qo.clock import iso, system_clock
from qo.engines.object_per_task.counts import ROLLUP, FinishedRollup
from qo.handled_types import find_unhandled, is_unhandled
from qo.ids import new_id
from qo.model import ANY, Filter, Status
from qo.notes import MAX_LIVE_TYPES
from qo.schedules.document import document_of
from qo.stats.archive import note_name
from qo.web.stats.throughput import RecentStats
from tests.dashboard.chromium import Tab
from tests.dashboard.zero_queue import EVERYTHING, Source, fill, opened, task_in
from tests.dashboard.zero_store import Place, Store

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("_keys")]
MANY = int(
    os.environ.get("QO_ZERO_TASKS", "430")
)  # more than one view reads; from 1,001 on, more than one listing tells
READ_AT_MOST = 400


async def mixed(client: Client, number: int) -> None:
    """Tasks of several queues, types and priorities, some with keys, which makes ids that tell no time."""
    options: list[dict[str, Any]] = [
        {
            "queue": ("main", "mail")[each % 2],
            "priority": each % 10,
            **({"idempotency_key": f"key-{each}"} if each % 5 == 0 else {}),
            **({"delay": 3600} if each % 7 == 0 else {}),
        }
        for each in range(number)
    ]
    new = [
        client.new_task(("crawl", "constructor", "x")[each % 3], b'{"n": %d, "who": "Ada"}' % each, **options[each])
        for each in range(number)
    ]
    await client.submit_many(new)


async def test_pages_hold_every_task_once_and_in_order(client: Client, source: Source) -> None:
    await mixed(client, 40)
    expected = {task.id: task async for task in client.all()}
    fields = {"newest": ("created_at", True), "updated": ("updated_at", True), "rank": ("rank", False)}
    for sort, (field, descending) in fields.items():
        found = await source.get(EVERYTHING, {"limit": 9, "sort": sort})
        assert Counter(task["id"] for task in found) == dict.fromkeys(expected, 1), sort
        values = [getattr(expected[task["id"]], field) for task in found[:9]]
        assert values == sorted(values, reverse=descending), sort


async def test_filters_find_what_the_engine_holds(client: Client, source: Source) -> None:
    await mixed(client, 30)
    held = [task async for task in client.all()]
    running = await client.dequeue(batch_size=2, queue="mail")
    shard = held[0].id[0]
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"type": "constructor"}, {task.id for task in held if task.type == "constructor"}),
        ({"queue": ["mail"]}, {task.id for task in held if task.queue == "mail"}),
        ({"priority": 3}, {task.id for task in held if task.priority == 3}),
        ({"shard": shard}, {task.id for task in held if task.id.startswith(shard)}),
        ({"status": ["running"]}, {task.id for task in running}),
        ({"worker": running[0].worker_id}, {task.id for task in running}),
        ({"text": '"n": 7,'}, {task.id for task in held if b'"n": 7,' in task.payload}),
        ({"text": "KEY-15"}, {task.id for task in held if task.idempotency_key == "key-15"}),
        ({"text": held[4].id}, {held[4].id}),
        ({"type": "nobody"}, set()),
    ]
    for filter_, expected in cases:
        found = await source.get(EVERYTHING, {"limit": 8, **filter_})
        assert sorted(task["id"] for task in found) == sorted(expected), filter_


async def test_the_overview_counts_as_the_engine_counts(client: Client, source: Source) -> None:
    await fill(client)
    await mixed(client, 12)
    await client.recorder.flush()
    seen, stats = await source.get("return source.overview();"), await client.stats()
    assert seen["counts"] == {status.value: stats[status.value] for status in Status}
    assert {line["type"]: line["pending"] for line in seen["types"]} == {
        kind: counts.get("pending", 0) for kind, counts in stats["by_type"].items()
    }
    assert {line["queue"]: line["live_types"] for line in seen["queues"]} == {"main": 4, "mail": 3}
    assert seen["controls"]["max_types"] == MAX_LIVE_TYPES
    lanes = await find_unhandled(client.engine, system_clock())
    assert {line["type"]: line["unhandled"] for line in seen["types"] if line["unhandled"]} == by_type(lanes)
    listed = await source.get("await source.overview(); return (await source.tasks({limit: 100})).tasks;")
    held = await client.engine.find(Filter(), limit=100)
    expected = {task.id for task in held if is_unhandled(task, lanes)}
    assert {task["id"] for task in listed if task.get("unhandled")} == expected and 0 < len(expected) < len(held)
    assert sum(line["depth"] for line in seen["priorities"]) == stats["pending"] and seen["exact"]
    assert seen["workers"] == {"busy": 1, "idle": 0, "draining": 0, "stale": 0}
    assert sums_of(seen["throughput"]) == (2, 1) and len(seen["throughput"]) == 60
    assert [task["status"] for task in seen["failures"]] == ["failed"]


def sums_of(minutes: list[dict[str, Any]]) -> tuple[int, int]:
    return sum(minute["completed"] for minute in minutes), sum(minute["failed"] for minute in minutes)


async def test_throughput_is_what_the_store_counted_although_the_tasks_are_gone(client: Client, source: Source) -> None:
    """The figures of the served overview."""
    ids = [await task_in(client, status) for status in [Status.COMPLETED] * 3 + [Status.FAILED] * 2]
    await client.engine.delete(ids[1:])
    earlier, retried = await client.enqueue("later", max_retries=1), await client.dequeue("later")
    await client.nack(retried[0], "once more")
    minutes = await RecentStats(client, system_clock).series()
    seen = await source.get("return source.overview();")
    counted = {str(iso(minute.at)): (minute.completed, minute.failed) for minute in minutes}
    shown = {minute["at"]: (minute["completed"], minute["failed"]) for minute in seen["throughput"]}
    common = counted.keys() & shown.keys()  # a minute may have passed in between
    assert len(common) >= 58 and {at: shown[at] for at in common} == {at: counted[at] for at in common}
    assert sums_of(seen["throughput"]) == (3, 2) and seen["counts"]["completed"] == 1
    assert seen["counts"]["pending"] == 1 and retried[0].id == earlier.id


async def test_statistics_are_read_once_and_again_only_where_they_changed(store: Store, tab: Tab) -> None:
    place = store.place()
    source = await Source.on(tab.page, place, place.link())
    async with opened(place) as client:
        now = system_clock()
        rows = [["work", "medium", {"completed": 1}]]
        for process in range(12):
            document = {"intervals": [[int(now) // 60 * 60, 60, rows]]}
            await client.engine.write_note(
                note_name(int(now) // 3600, f"p{process}"), json.dumps(document).encode(), expected=ANY
            )
        old = {"intervals": [[int(now) // 60 * 60 - 7200, 60, rows]]}
        await client.engine.write_note(note_name(int(now) // 3600 - 2, "p0"), json.dumps(old).encode(), expected=ANY)
        script = """
          const costs = [];
          let seen;
          for (const again of [1, 2]) {
            const before = source.requests;
            seen = await source.overview();
            costs.push(source.requests - before);
          }
          return {costs, completed: seen.throughput.reduce((sum, each) => sum + each.completed, 0)};
        """
        answer = await source.get(script)
    assert answer["completed"] == 12
    first, second = answer["costs"]
    assert first <= 12 + 4 and second <= 4


async def test_an_empty_place_is_an_empty_queue(source: Source) -> None:
    seen = await source.get("return source.overview();")
    assert sum(seen["counts"].values()) == 0 and seen["queues"] == []
    assert (await source.get("return source.tasks({});"))["tasks"] == []
    assert await source.get("return source.workers();") == []
    missing = await source.ask("return source.history(argument);", new_id())
    assert missing.code == "not_found"


async def test_looking_again_reads_only_what_changed(client: Client, source: Source) -> None:
    await mixed(client, 30)
    await client.recorder.flush()  # otherwise it may happen between two looks
    script = """
      const costs = [];
      for (const again of [1, 2, 3]) {
        if (again === 3) await argument;
        const before = source.requests;
        await source.overview();
        costs.push(source.requests - before);
      }
      return costs;
    """
    first, second, third = await source.get(script)
    assert first <= 30 + 5
    # Lists tasks, workers and, unless the last list is recent, statistics; asks for the controls and the consumers.
    assert second <= 5 and third <= 5


@pytest.fixture
def many(store: Store) -> Place:
    return store.place()


async def test_a_long_queue_costs_no_more_than_a_bounded_number_of_requests(many: Place, tab: Tab) -> None:
    source = await Source.on(tab.page, many, many.link())
    async with opened(many) as client:
        done = [await task_in(client, Status.FAILED, type="done", name="other") for _ in range(3)]
        await mixed(client, MANY)
        counted = FinishedRollup(counted_at=system_clock(), lanes=[("other", "done", Status.FAILED, 6, len(done))])
        many.put(ROLLUP, msgspec.json.encode(counted))
        stats = await client.stats()
    answer = await source.ask("return source.overview();")
    seen, pages = answer.value, -(-MANY // 1000)
    assert answer.requests <= READ_AT_MOST + 2 * 16 * pages + 20
    assert seen["counts"] == {status.value: stats[status.value] for status in Status}
    assert not seen["exact"] and "Finished tasks were counted at" in seen["remarks"][0]
    assert {line["queue"]: line["pending"] for line in seen["queues"]} == {
        "main": MANY // 2,
        "mail": MANY // 2,
        "other": 0,
    }

    page = await source.ask("return source.tasks({status: ['pending'], type: 'crawl', limit: 20});")
    assert page.requests <= 100 + 2 * 16 * pages
    assert len(page.value["tasks"]) == 20 and page.value["total"] == stats["by_type"]["crawl"]["pending"]

    script = """
      const first = await source.tasks({text: 'no such text', limit: 20});
      const cost = source.requests;
      const second = await source.tasks({text: 'no such text', limit: 20, cursor: first.cursor});
      return {first, cost, second};
    """
    nothing = await source.get(script)
    assert nothing["cost"] <= READ_AT_MOST + 2 * 16 * pages + 20
    assert nothing["first"]["tasks"] == [] and nothing["first"]["searched"] == READ_AT_MOST
    assert nothing["second"]["tasks"] == [] and nothing["second"]["searched"] > 0


async def test_schedules_are_shown_as_the_server_shows_them_without_next_fire_times(
    client: Client, source: Source
) -> None:
    await client.schedules.add("sync", task="sync", every=60, options={"queue": "slow"})
    await client.schedules.add("nightly", task="report", cron="0 3 * * *", timezone="Europe/Berlin", overlap="skip")
    await client.schedules.add("over", task="report", every=60, end_at=1.0)
    await client.schedules.pause("sync")
    task_id = await client.schedules.run("sync")
    await client.engine.write_note("schedules/bad", b'{"schedule": {"name": 5}}', expected=ANY)
    shown = {each["name"]: each for each in (await source.get("return source.schedules();"))["schedules"]}
    expected = {each.name: msgspec.to_builtins(document_of(each)) for each in await client.schedules.list()}
    assert shown.keys() == expected.keys()
    for name, schedule in shown.items():
        for field in schedule.keys() - {"recent", "next_fires"}:
            assert schedule[field] == expected[name][field], (name, field)
    assert [(fire["task_id"], fire["by_hand"]) for fire in shown["sync"]["recent"]] == [(task_id, True)]


async def test_tasks_of_a_batch_are_found(client: Client, source: Source) -> None:
    await client.enqueue("t")
    handle = await client.enqueue("t", batch="b-1")
    found = await source.get("return source.tasks(argument);", {"batch": "b-1"})
    assert [task["id"] for task in found["tasks"]] == [handle.id]
