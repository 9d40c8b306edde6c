"""`qo batch`, and the options of `qo submit` for batches and unique tasks."""

import asyncio
import json
from typing import Any

import pytest

from qo.client import connect
from qo.client.batches import new_batch_id
from qo.model import Status, renew
from qo.testing.samples import claim_one


def test_a_batch_is_submitted_listed_and_shown(call: Any) -> None:
    for n in range(2):
        call("submit", "--type", "t", "--input", f'{{"n": {n}}}', "--batch", "thumbnails")
    (listed,) = call.json("batch", "list")["batches"]
    assert (listed["id"], listed["total"], listed["pending"], listed["done"]) == ("thumbnails", 2, 2, 0)
    shown = call.json("batch", "show", "thumbnails")
    assert (shown["total"], shown["fraction"], shown["eta"]) == (2, 0.0, None)
    assert "0 of 2 tasks done" in call("batch", "show", "thumbnails").stdout
    assert "thumbnails" in call("batch", "list").stdout


def test_watching_ends_when_all_tasks_have_ended(call: Any) -> None:
    made = call.json("submit", "--type", "t", "--batch", "b")
    call("cancel", made["id"])
    watched = call.json("batch", "watch", "b")
    assert (watched["done"], watched["cancelled"]) == (1, 1)
    assert call.json("status", made["id"])["status"] == Status.CANCELLED.value


def test_the_same_fields_are_submitted_once(call: Any) -> None:
    def submit(payload: str, *more: str) -> Any:
        return call.json("submit", "--type", "t", "--input", payload, "--unique", "customer", *more)

    first = submit('{"customer": 1, "n": 1}')
    again = submit('{"customer": 1, "n": 2}', "--on-duplicate", "replace", "--unique-within", "1h")
    assert (again["id"], again["new"]) == (first["id"], False)
    assert call.json("status", first["id"])["payload"] == {"customer": 1, "n": 2}
    assert call.error("submit", "--type", "t", "--unique", "client", code=2)["field"] == "unique.by"


@pytest.mark.parametrize(
    "option", [("--unique-within", "1h"), ("--on-duplicate", "keep"), ("--unique-until", "started")]
)
def test_options_of_unique_need_unique(call: Any, option: tuple[str, str]) -> None:
    assert "--unique" in call.error("submit", "--type", "t", *option, code=2)["error"]


def test_a_name_means_its_newest_batch(call: Any) -> None:
    batch = new_batch_id("thumbnails")
    call("submit", "--type", "t", "--batch", batch)
    assert call.json("batch", "show", "thumbnails")["id"] == batch
    for words in (("show", "unknown"), ("watch", "unknown")):
        assert "there is no batch unknown" in call.error("batch", *words, code=3)["error"]


def test_the_tasks_of_a_batch_are_listed_and_cancelled_together(call: Any) -> None:
    ids = {call.submit("t", "--batch", "b-1") for _ in range(2)}
    other = call.submit("t")
    assert {task["id"] for task in call.json("list", "--batch", "b-1")["tasks"]} == ids
    assert call.json("cancel", "--batch", "b-1", "--yes") == {"matched": 2, "done": 2}
    assert call.json("status", other)["status"] == Status.PENDING.value
    assert "batch b-1" in call("audit").stdout
    assert call.error("cancel", "--batch", "a b", "--yes", code=2)["field"] == "batch"
    assert call.error("list", "--batch", "a b", code=2)["field"] == "batch"


def test_lines_have_batches_and_unique_arguments(call: Any) -> None:
    line = {"type": "t", "payload": {"customer": 1}, "batch": "b", "unique": {"by": ["customer"], "within": 60}}
    text = "\n".join(json.dumps(each) for each in (line, line, line | {"payload": {"customer": 2}, "unique": {}}))
    outcome = call.json("submit", "-", input=text)
    assert (outcome["submitted"], outcome["already_there"]) == (2, 1)
    assert call.json("batch", "show", "b")["total"] == 2
    listed = call("list", "--json-lines").stdout.splitlines()
    assert {json.loads(each)["batch"] for each in listed} == {"b"}
    again = call.json("submit", "-", input="\n".join(listed))
    assert (again["submitted"], again["already_there"]) == (0, 2)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"batch": "a b"}, "batch"),
        ({"unique": "args"}, "unique"),
        ({"unique": {"colour": "red"}}, "unique"),
        ({"unique": {"by": 5}}, "unique.by"),
        ({"unique": {"within": "an hour"}}, "unique.within"),
        ({"unique": {"until": "later"}}, "unique.until"),
    ],
)
def test_a_wrong_field_of_a_line_is_named(call: Any, more: dict[str, Any], field: str) -> None:
    error = call.error("submit", "-", code=2, input=json.dumps({"type": "t"} | more))
    assert error["field"] == field and "line 1" in error["error"]


def test_top_shows_unfinished_batches_and_the_progress_of_running_tasks(call: Any) -> None:
    done = call.submit("t", "--batch", "over-1")
    call("cancel", done)
    call.submit("resize", "--batch", "thumbnails")
    call.submit("resize", "--batch", "thumbnails", "--delay", "1h")

    async def report() -> None:
        async with connect(call.url) as client:
            task = await claim_one(client.engine)
            assert all(await client.engine.apply([renew(task, 60.0, progress=0.4, progress_text="cat.png")]))

    asyncio.run(report())
    shown = call.json("top")
    assert [(each["id"], each["running"], each["total"]) for each in shown["batches"]] == [("thumbnails", 1, 2)]
    assert [(each["type"], each["progress"]) for each in shown["running"]] == [("resize", 0.4)]
    text = call("top", "--once").stdout
    assert "thumbnails" in text and "40% cat.png" in text and "over-1" not in text
