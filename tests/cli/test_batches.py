"""`qo batch`, and the options of `qo submit` for batches and unique tasks."""

from typing import Any

import pytest

from qo.model import Status


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
