import json
from typing import Any

import pytest

from qo.model import Status

NOWHERE = "0f0190a4-0000-8000-8000-000000000000"


def statuses(call: Any) -> dict[str, int]:
    return {name: number for name, number in call.json("stats").items() if number and name in set(Status)}


def test_a_task_goes_through_every_hand(call: Any) -> None:
    task_id = call.submit("t")
    for verb, status in (
        ("cancel", "cancelled"),
        ("replay", "pending"),
        ("cancel", "cancelled"),
        ("archive", "archived"),
    ):
        assert call.json(verb, task_id) == {"done": 1, "ids": [task_id], "refused": []}
        assert call.json("status", task_id)["status"] == status
    assert task_id in call("delete", task_id).stdout
    call("status", task_id, code=3)


@pytest.mark.parametrize("verb", ["replay", "archive", "delete"])
def test_the_wrong_status_is_exit_code_4(call: Any, verb: str) -> None:
    task_id = call.submit("t")
    (refused,) = call.json(verb, task_id, code=4)["refused"]
    assert refused["id"] == task_id and "is pending" in refused["error"] and refused["code"] == 4


def test_of_several_tasks_each_gets_its_answer_and_the_worst_decides(call: Any) -> None:
    good, bad = call.submit("t"), call.submit("t")
    call("cancel", bad)
    result = call("cancel", good, bad, NOWHERE, "--json", code=4)
    answer = json.loads(result.stdout)
    assert answer["ids"] == [good] and [one["code"] for one in answer["refused"]] == [4, 3]
    shown = call("cancel", good, NOWHERE, code=4)
    assert "no task" in shown.stderr and "is cancelled" in shown.stderr


def test_a_slip_in_one_id_does_nothing_to_the_others(call: Any) -> None:
    task_id = call.submit("t")
    assert call.error("cancel", task_id, "oops", code=2)["field"] == "id"
    assert statuses(call) == {"pending": 1}


def test_by_filter_needs_a_yes(call: Any) -> None:
    for kind in ("a", "a", "b"):
        call.submit(kind)
    assert "2 tasks would be cancelled; add --yes" in call.error("cancel", "--type", "a", code=2)["error"]
    assert statuses(call) == {"pending": 3}
    assert call.json("cancel", "--type", "a", "--yes") == {"matched": 2, "done": 2}
    assert statuses(call) == {"pending": 1, "cancelled": 2}
    assert "2 tasks replayed" in call("replay", "--status", "cancelled", "--queue", "default", "--yes").stdout
    assert call.json("cancel", "--older-than", "1d", "--yes") == {"matched": 0, "done": 0}
    assert call.json("cancel", "--older-than", "0", "--yes") == {"matched": 3, "done": 3}
    assert call.json("archive", "--older-than", "7d", "--yes") == {"matched": 0, "done": 0}
    assert call.json("archive", "--status", "cancelled", "--type", "b", "--yes") == {"matched": 1, "done": 1}
    assert call.json("delete", "--status", "archived", "--status", "cancelled", "--yes") == {"matched": 3, "done": 3}
    assert statuses(call) == {}


def test_a_filter_that_cannot_match_is_an_error(call: Any) -> None:
    call.submit("t")
    assert (
        "not a status that replay applies to" in call.error("replay", "--status", "pending", "--yes", code=2)["error"]
    )
    assert "Pass the ids" in call.error("delete", "--yes", code=2)["error"]
    assert "not both" in call.error("cancel", NOWHERE, "--type", "a", code=2)["error"]


@pytest.mark.parametrize("verb", ["cancel", "delete", "archive", "replay"])
@pytest.mark.parametrize("empty", ["--queue=", "--type=", "--queue=,", "--type= , ", "--batch="])
def test_an_empty_filter_does_not_select_all_tasks(call: Any, verb: str, empty: str) -> None:
    """A script passes `--queue "$QUEUE"`, and the variable is not set."""
    call("cancel", call.submit("t"))
    call.submit("t")
    for status in ([], ["--status", "pending" if verb == "cancel" else "cancelled"]):
        call(verb, empty, *status, "--yes", code=2)
    assert statuses(call) == {"pending": 1, "cancelled": 1}


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_an_empty_name_does_not_pause_or_resume_everything(call: Any, verb: str) -> None:
    call("submit", "--type", "t")
    call("pause", "--queue", "mail")
    assert "contains no name" in call.error(verb, "--queue", "", code=2)["error"]
    assert "contains no name" in call.error(verb, "--type", ",", code=2)["error"]
    controls = call.json("pause", "--queue", "mail")
    assert controls["paused"] is False and controls["paused_queues"] == ["mail"]


def test_switches_are_set_shown_and_lifted(call: Any) -> None:
    call.submit("t")
    assert call.json("pause", "--queue", "mail,web", "--type", "crawl")["paused_queues"] == ["mail", "web"]
    assert call.json("pause")["paused"] is True
    assert call.json("limit", "2.5", "--type", "crawl")["rate_limits"] == {"crawl": 2.5}
    assert "everything is paused" in call("limit", "7").stdout
    assert call.json("resume", "--queue", "mail")["paused_queues"] == ["web"]
    control = call.json("resume")
    assert control["paused"] is False and control["paused_types"] == [] and control["rate_limit"] == 7.0
    assert call.error("limit", "nan", code=2)["error"] and call.error("pause", "--type", "a b", code=2)["error"]


def test_a_type_may_look_like_a_path_or_an_address(call: Any) -> None:
    for kind in ("mail/welcome@eu+1", "x" * 255):
        call.submit(kind)
        call("pause", "--type", kind)
        call("limit", "5", "--type", kind)
        (listed,) = call.json("list", "--type", kind)["tasks"]
        assert listed["type"] == kind
        assert call.json("cancel", "--type", f"{kind},other", "--yes") == {"matched": 1, "done": 1}


def test_a_monitor_tidies_away_what_is_older_than_its_retentions(call: Any) -> None:
    call("cancel", call.submit("t"))

    def tidied(*options: str) -> tuple[int, int]:
        checked = call.json("monitor", "--once", *options)
        return checked["archived"], checked["deleted"]

    assert tidied() == tidied("--retention", "0") == tidied("--failed-retention", "1ms") == (0, 0)
    assert tidied("--retention", "1ms", "--failed-retention", "30d") == (1, 1)
    assert call.json("list")["tasks"] == []
