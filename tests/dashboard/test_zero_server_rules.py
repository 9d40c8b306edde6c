"""What a page works out by itself, against what Python works out: names of objects, changes, and how tasks look."""

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import fields, replace
from playwright.async_api import Page

from qo.buckets.cloud import least_offset
from qo.client import Client
from qo.clock import iso
from qo.codec import encode_task, encode_value, task_view
from qo.damage import check_seal, sealed
from qo.engines.memory import MemoryEngine
from qo.engines.object_per_task.keys import entry_of, index_key, task_key
from qo.ids import new_id, new_token, random_fraction
from qo.model import (
    ANY,
    Change,
    ClaimRequest,
    FailureKind,
    NewTask,
    RetryPolicy,
    Status,
    Task,
    apply,
    archive,
    cancel,
    complete,
    due_at,
    fail,
    parse_group,
    replay,
    with_kind,
)
from qo.stats.archive import note_name
from qo.testing import ManualClock
from qo.web.stats.throughput import RecentStats
from tests.dashboard.chromium import call

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOW = 1_794_796_800.123456
CHANGES: dict[str, Callable[[str], Change]] = {"cancel": cancel, "replay": replay, "archive": archive}
PAYLOADS: list[object] = [
    None,
    {"to": "a@example.com", "n": [1, 2.5, "ü", True, None], "big": 9_007_199_254_740_993},
    b"\x00\xff raw",
    "text",
]


def plain(task: Task) -> Any:
    return json.loads(encode_task(task))


def some_task(status: Status, number: int = 0) -> Task:
    """Not a nice one: instants with all their digits, at and around whole minutes."""
    created_at = NOW - 5000 * random_fraction() if number % 3 else float(int(NOW / 60) * 60 - number)
    available_at = created_at + (3600 * random_fraction() if number % 2 else -1e6 if number % 5 == 4 else 0.0)
    running = status is Status.RUNNING
    return Task(
        id=new_id(lambda: created_at),
        queue=("default", "crawl", "a.b:c")[number % 3],
        type=("send_email", "constructor", "x")[number % 3],
        status=status,
        payload=encode_value(PAYLOADS[number % len(PAYLOADS)]),
        result=encode_value({"done": number}) if status is Status.COMPLETED else None,
        error="boom" if number % 2 else None,
        failure_kind=FailureKind.TIMEOUT if number % 2 else None,
        priority=number % 10,
        stored_needs=((), ("!customer=4%202", "gpu"), ("eu", "gpu"))[number % 3],
        retry=RetryPolicy(initial=0.5 + random_fraction()),
        attempt=number % 4,
        failures=number % 3,
        available_at=available_at,
        lease_expires_at=NOW + 300 * random_fraction() if running else None,
        worker_id="worker-1" if running else None,
        lease_id=new_token() if running or number % 2 else None,
        created_at=created_at,
        updated_at=created_at + 0.25,
        started_at=NOW if running else None,
        completed_at=NOW if status not in (Status.PENDING, Status.RUNNING) else None,
        version=1 + number * 7,
        rank=due_at(available_at, created_at) + (number % 10) * 200.0,
    )


TASKS = [some_task(status, number) for status, number in product(Status, range(12))]


async def test_index_entries_get_the_names_python_gives_them(modules: Page) -> None:
    script = "await Promise.all(argument.map(async (task) => [m.taskKey(task.id), await m.indexKey(task)]))"
    ours = await call(modules, "keys.js", script, [plain(task) for task in TASKS])
    assert ours == [[task_key(task.id), index_key(task)] for task in TASKS]
    assert any(key for _, key in ours)


async def test_names_of_entries_are_read_alike(modules: Page) -> None:
    keys = [key for task in TASKS if (key := index_key(task))]
    ours = await call(modules, "keys.js", "argument.map(m.entryOf)", keys)
    for key, entry in zip(keys, ours, strict=True):
        theirs = entry_of(key)
        assert theirs is not None
        names = ("key", "at", "rank", "lane", "created_at", "version", "id")
        assert [entry[name] for name in names] == [getattr(theirs, name) for name in names]
    assert await call(modules, "keys.js", "m.entryOf(argument)", "ready/0/1/<img>") is None


TEXTS = ["{}", '{"a":"\u00fc \u20ac \U0001f600"}', json.dumps({"n": list(range(2000))}), *(f"[{n}]" for n in range(40))]


async def test_a_checksum_is_the_one_python_writes_and_checks(modules: Page) -> None:
    ours = await call(modules, "checksum.js", "argument.map(m.sealed)", TEXTS)
    assert ours == [sealed(text.encode()).decode() for text in TEXTS]
    assert all(check_seal(text.encode()) for text in ours)
    assert await call(modules, "checksum.js", "argument.map(m.parsed)", ours) == [json.loads(text) for text in TEXTS]
    assert await call(modules, "checksum.js", "m.parsed(argument)", "[1]") == [1], "one without a checksum is read"


async def test_a_page_refuses_a_document_whose_checksum_does_not_match(modules: Page) -> None:
    right = [sealed(text.encode()).decode() for text in ('{"a":1}', '{"a":"\u00fc"}')]
    flipped = right[0][:-1] + (" " if right[0].endswith("\t") else "\t")  # a bit of the checksum itself
    wrong = [right[0].replace("1", "3"), right[1].replace("\u00fc", "\u00fd"), flipped]
    script = "argument.map((text) => { try { return m.parsed(text); } catch (error) { return error.message; } })"
    assert await call(modules, "checksum.js", script, wrong) == ["the checksum does not match"] * len(wrong)


async def test_minutes_are_rounded_down_as_python_does(modules: Page) -> None:
    instants = [number * 60 + edge for number in (0, 1, 29_913_280) for edge in (0.0, 1e-7, 59.9999999, 59.99999999999)]
    ours = await call(modules, "keys.js", "argument.map(m.minute)", instants)
    assert ours == [f"{int(instant // 60):09d}" for instant in instants]


async def test_every_action_makes_of_every_task_what_the_model_makes_of_it(modules: Page) -> None:
    for action, change in CHANGES.items():
        script = "argument[0].map((task) => m.apply(task, ...argument[1]))"
        ours = await call(modules, "rules.js", script, [[plain(task) for task in TASKS], [action, NOW]])
        for task, changed in zip(TASKS, ours, strict=True):
            theirs = apply(task, change(task.id), NOW)
            assert changed == (None if theirs is None else plain(theirs)), (action, task.status)


async def test_what_a_document_leaves_out_is_what_python_fills_in(modules: Page) -> None:
    least = Task(id=new_id(), queue="q", type="t", available_at=1.0, created_at=1.0, updated_at=1.0, rank=1.0)
    needed = {name: plain(least)[name] for name in (field.name for field in fields(Task) if field.required)}
    assert await call(modules, "rules.js", "m.whole(argument)", needed) == plain(least)


async def test_errors_without_a_kind_are_read_as_python_reads_them(modules: Page) -> None:
    old = [replace(TASKS[0], error=error, failure_kind=None) for error in ("boom", "lost: the process died", None)]
    ours = await call(modules, "rules.js", "argument.map(m.whole)", [plain(task) for task in old])
    assert ours == [plain(with_kind(task)) for task in old]


async def test_tasks_look_as_python_shows_them_and_never_show_a_lease(modules: Page) -> None:
    script = "JSON.stringify(argument[0].map((task) => m.taskView(task, argument[1])))"
    ours = json.loads(await call(modules, "values.js", script, [[plain(task) for task in TASKS], NOW]))
    for task, view in zip(TASKS, ours, strict=True):
        theirs = task_view(replace(task, payload=b"null"), NOW) | {"payload": None}
        assert {**view, "payload": None} == theirs
        assert "lease_id" not in view
        assert not task.lease_id or task.lease_id not in json.dumps(view)
    payloads = [view["payload"] for view in ours[: len(PAYLOADS)]]
    assert payloads[0] is None
    assert payloads[1] == PAYLOADS[1]  # the large number too, which JavaScript's own numbers would round
    assert payloads[2] == {"$base64": "AP8gcmF3"}


async def test_a_row_of_a_listing_shows_no_lease_either(modules: Page) -> None:
    script = "argument[0].map((task) => m.rowView(m.rowOf(task, 'etag'), argument[1]))"
    rows = await call(modules, "rows.js", script, [[plain(task) for task in TASKS], NOW])
    text = json.dumps(rows)
    assert all(task.id in text for task in TASKS)
    assert not any(task.lease_id in text for task in TASKS if task.lease_id)
    hidden = {"payload", "result"}
    for task, row in zip(TASKS, rows, strict=True):
        expected = {name: value for name, value in task_view(task, NOW).items() if name not in hidden}
        assert row == expected


async def test_the_clock_of_the_store_is_computed_as_in_python(modules: Page) -> None:
    cases = [(100.2, 100.0, 100.4), (100.2, 400.0, 100.4), (400.7, 100.0, 400.9), (99.9, 100.0, 100.1)]
    ours = await call(modules, "store_clock.js", "argument.map((each) => m.leastOffset(...each))", cases)
    assert ours == [least_offset(*case) for case in cases]


async def test_the_history_of_a_task_equals_that_of_the_server(modules: Page) -> None:
    pytest.importorskip("litestar")
    from qo.web.dashboard_api.views import documents  # noqa: PLC0415 - with a server's packages only

    clock = ManualClock()
    engine = MemoryEngine(clock)
    task_id = new_id(clock)
    await engine.add([NewTask(id=task_id, queue="q", type="t", payload=b"[1]")])
    for _ in range(2):
        clock.advance(10)
        (held,) = await engine.claim(ClaimRequest(worker_id="w", lease_id=new_token()))
        clock.advance(5)
        await engine.apply([fail(held, "boom")])
        await engine.apply([replay(task_id)])
    (held,) = await engine.claim(ClaimRequest(worker_id="w", lease_id=new_token()))
    await engine.apply([complete(held, b"2")])
    await engine.apply([archive(task_id)])
    (task,) = await engine.get([task_id])
    assert task is not None
    events = await engine.history(task_id)
    script = "m.history(...argument).map((each) => each.task)"
    ours = await call(modules, "history.js", script, [task_view(task, clock()), [to_builtins(each) for each in events]])
    assert ours == documents(task, events, clock())


ADDED_UP = """(async () => {
  const find = async (prefix, {after, isWanted, as}) => argument.notes
    .filter(([name]) => name.startsWith(prefix) && name > after && isWanted(name))
    .map(([name, value]) => ({name, value: as(value)}))
    .filter(({value}) => value !== null);
  return m.lastHour(await m.readStats({find}, argument.now), argument.now);
})()"""


async def test_throughput_is_added_up_as_the_server_adds_it_up(modules: Page) -> None:
    """Notes of processes, of an hour merged whole or half, of hours before and after, and garbage."""
    clock = ManualClock(NOW)
    client = Client(MemoryEngine(clock), clock=clock)
    hour = int(NOW) // 3600
    intervals: list[list[Any]] = [
        [start, 60, rows_of(start)] for start in range(hour * 3600 - 7200, (hour + 2) * 3600, 420)
    ]
    notes: dict[str, Any] = {}
    for at in (hour - 2, hour - 1, hour, hour + 1):
        mine = [each for each in intervals if each[0] // 3600 == at]
        notes |= {note_name(at, f"p{each}"): {"intervals": mine[each:]} for each in range(4)}
        notes[note_name(at, "off")] = {"intervals": [[at * 3600 + 7, 60, rows_of(1)], [at * 3600, 3600, rows_of(1)]]}
    notes[note_name(hour - 1, "merged")] = {"intervals": intervals, "merged": ["p0", "p2", "gone"]}
    notes[note_name(hour, "merged")] = {"intervals": intervals[:2], "merged": "p0"}
    notes[note_name(hour, "odd")] = {"intervals": [[hour * 3600, 60, [["t", "high", {"completed": "9"}]]]]}
    notes[note_name(hour, "list")], notes["stats/x/p0"] = [], notes[note_name(hour, "p0")]
    for name, document in notes.items():
        await client.engine.write_note(name, json.dumps(document).encode(), expected=ANY)
    theirs = await RecentStats(client, clock).series()
    ours = await call(modules, "stats.js", ADDED_UP, {"notes": list(notes.items()), "now": NOW})
    assert [(each["completed"], each["failed"]) for each in ours] == [(each.completed, each.failed) for each in theirs]
    assert [each["at"] for each in ours] == [iso(each.at) for each in theirs]
    assert sum(each["completed"] for each in ours) > 20 < sum(each["failed"] for each in ours)


def rows_of(start: int) -> list[Any]:
    failed = {"failed": {"error": start % 5, "timeout": 1}, "run": [0.5, {"5": 1}]}
    return [["t", "high", {"completed": start % 7, **failed}], ["t", "low", {"retried": {"error": 4}, "completed": 1}]]


async def test_a_group_is_escaped_in_the_same_way(modules: Page) -> None:
    values = ["42", "a b", "Zoë & Söhne=1", "a%20b", "%", "", "(it's)*!~", "a:b/c@d+e,f._-", "💥\n"]
    written = [f"customer={value}" for value in values]
    assert await call(modules, "bucket.js", "argument.map(m.parseGroup)", written) == [
        parse_group("key", each) for each in written
    ]
    refused = "argument.map((each) => { try { return m.parseGroup(each); } catch (error) { return error.code; } })"
    wrong = ["customer", "=1", "a b=1", "customer=" + "ü" * 200]
    assert await call(modules, "bucket.js", refused, wrong) == ["refused"] * 4
