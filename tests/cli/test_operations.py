"""Commands that operate on single tasks: run now, reschedule, priority, explain, wait; ids by their beginnings."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import qo.sync
from qo.cli import main
from qo.cli.group import COMMANDS, OTHER_NAMES
from qo.clock import system_clock
from qo.model import ANY
from qo.notes import WORKERS, WorkerNote


def work(call: Any) -> None:
    """Settle what is due: `broken` fails, the rest completes."""
    with qo.sync.connect(call.url) as client:
        for task in client.dequeue(batch_size=99):
            if task.type == "broken":
                client.nack(task, "no luck")
            else:
                client.ack(task, 3)


def test_a_task_runs_now_or_at_another_time(call: Any) -> None:
    task_id = call.submit("t", "--delay", "1h")
    assert call.json("list", "--status", "scheduled")["tasks"][0]["id"] == task_id
    assert call.json("run-now", task_id)["ids"] == [task_id]
    assert call.json("list", "--status", "scheduled")["tasks"] == []
    assert call.json("list", "--status", "ready")["tasks"][0]["id"] == task_id
    (refused,) = call.json("run-now", task_id, code=4)["refused"]
    assert "is already due" in refused["error"]
    assert call.json("reschedule", task_id, "--in", "2h")["done"] == 1
    assert call.json("stats")["pending_kinds"] == {"ready": 0, "scheduled": 1, "retrying": 0, "blocked": 0}
    call("reschedule", task_id, "--at", "2040-01-31T08:00:00Z")
    assert call.json("status", task_id)["available_at"] == "2040-01-31T08:00:00.000Z"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--at TIME or with --in DURATION"),
        (["--at", "2040-01-01T00:00:00Z", "--in", "5"], "--at TIME or with --in DURATION"),
        (["--at", "soon"], "--at: 'soon' is not an ISO 8601 time"),
        (["--in", "soon"], "is not a duration"),
    ],
)
def test_a_new_time_is_checked(call: Any, options: list[str], message: str) -> None:
    assert message in call.error("reschedule", call.submit("t"), *options, code=2)["error"]


def test_a_priority_is_changed_by_id_and_by_filter(call: Any) -> None:
    ids = [call.submit("t") for _ in range(3)]
    call("priority", ids[0], "--to", "high")
    assert call.json("status", ids[0])["priority"] == 0
    assert call.json("priority", "--to", "9", "--type", "t", "--yes") == {"matched": 3, "done": 3}
    assert {task["priority"] for task in call.json("list")["tasks"]} == {9}
    assert "priority" in call.error("priority", ids[0], "--to", "urgent", code=2)["error"]
    actions = [(one["action"], one["number"]) for one in call.json("audit")["records"]]
    assert ("priority", 3) in actions and ("priority", 1) in actions


def test_completed_tasks_are_replayed_only_on_request(call: Any) -> None:
    task_id = call.submit("add", "--input", '{"a": 1, "b": 2}')
    work(call)
    assert "is completed" in call.json("replay", task_id, code=4)["refused"][0]["error"]
    assert call.json("replay", "--completed", "--type", "add", "--yes") == {"matched": 1, "done": 1}
    assert call.json("status", task_id)["status"] == "pending"


def test_what_waits_is_deleted_after_cancelling(call: Any) -> None:
    later, now = call.submit("t", "--delay", "1h"), call.submit("t")
    assert "is pending" in call.json("delete", later, code=4)["refused"][0]["error"]
    assert "retrying" in call.error("delete", "--status", "retrying", "--yes", code=2)["error"]
    assert call.json("delete", "--cancel", "--status", "scheduled", "--yes") == {"matched": 1, "done": 1}
    assert call.json("delete", "--cancel", now)["ids"] == [now]
    assert call.json("list")["tasks"] == []


def test_a_task_is_named_by_the_beginning_of_its_id(call: Any) -> None:
    task_id = call.submit("t")
    assert call.json("status", task_id[:12])["id"] == task_id
    assert call.json("explain", task_id[:20].upper())["id"] == task_id
    assert call.json("cancel", task_id[:9])["ids"] == [task_id]
    assert call.error("status", "0f01", code=3)["error"].startswith("no id begins with 0f01")
    assert call.error("status", task_id[:3], code=2)["field"] == "id"
    key = call.submit("t", "--idempotency-key", "k")  # its id does not contain the time
    assert call.json("status", key[:6])["id"] == key
    ids = [f"abcd0000-0000-8000-8000-00000000000{number}" for number in range(2)]
    for each in ids:
        call.submit("t", "--id", each)
    assert "is the beginning of several ids: " in call.error("status", "abcd", code=2)["error"]


def test_explain_shows_why(call: Any) -> None:
    first = call.submit("t")
    call("pause", "--queue", "default")
    answer = call.json("explain", first)
    assert [reason["kind"] for reason in answer["reasons"]] == ["paused", "no_worker"]
    assert "queue default is paused" in call("explain", first).stdout
    assert len(call.json("explain", first, call.submit("t"))) == 2
    call("explain", "0f0190a4-0000-8000-8000-000000000000", code=3)


def test_wait_reports_the_outcome_by_its_exit_code(call: Any) -> None:
    good, bad = call.submit("add", "--input", '{"a": 1, "b": 2}'), call.submit("broken", "--max-retries", "0")
    assert "still pending" in call.error("wait", good, "--timeout", "10ms", code=1)["error"]
    work(call)
    assert call.json("wait", good)["result"] == 3
    assert [task["status"] for task in call.json("wait", good, bad, code=1)] == ["completed", "failed"]
    assert "completed 3" in call("wait", good).stdout


def test_lines_of_a_listing_can_be_submitted_again(call: Any, tmp_path: Any) -> None:
    ids = [
        call.submit("add", "--input", '{"a": 1}', "--priority", "2", "--needs", "gpu", "--timeout", "5"),
        call.submit("add", "--delay", "1h", "--idempotency-key", "k"),
    ]
    lines = call("list", "--json-lines", "--sort", "oldest").stdout
    assert [json.loads(line)["id"] for line in lines.splitlines()] == ids
    other = f"sqlite:///{tmp_path}/copy.db"
    runner = CliRunner()
    assert runner.invoke(main, ["submit", "-", "--url", other], input=lines).exit_code == 0
    assert runner.invoke(main, ["list", "--json-lines", "--sort", "oldest", "--url", other]).stdout == lines
    assert "2 already submitted" in runner.invoke(main, ["submit", "-", "--url", other], input=lines).stdout


def test_a_listing_searches_and_sorts(call: Any) -> None:
    for number, priority in ((1, "5"), (2, "1"), (3, "9")):
        call.submit("t", "--input", f'{{"name": "Anna {number}"}}', "--priority", priority)
    call.submit("broken", "--max-retries", "0")
    work(call)
    assert [task["priority"] for task in call.json("list", "--text", "anna", "--sort", "priority")["tasks"]] == [
        1,
        5,
        9,
    ]
    assert [task["type"] for task in call.json("list", "--error", "LUCK")["tasks"]] == ["broken"]
    assert call.json("list", "--text", "anna", "--limit", "2")["next"]
    assert len(call.json("list", "--sort", "oldest", "--limit", "2")["tasks"]) == 2


def test_a_mistyped_command_is_corrected(call: Any) -> None:
    assert "Did you mean 'qo submit'" in call.error("sumbit", code=2)["error"]
    assert "No such command" in call.error("xyzzy", code=2)["error"]
    for other, meant in (("show", "status"), ("retry", "replay"), ("cron", "schedules"), ("log", "logs")):
        assert f"Did you mean 'qo {meant}'" in call.error(other, code=2)["error"]


def test_other_names_name_no_command_and_mean_one() -> None:
    assert not OTHER_NAMES.keys() & COMMANDS.keys()
    assert {name for names in OTHER_NAMES.values() for name in names} <= COMMANDS.keys()


def test_what_is_no_id_is_refused(call: Any) -> None:
    call.submit()
    for word in ("nothing", "0f0", "0f01x"):
        assert "not an id, nor the first 4 or more digits of one" in call.error("status", word, code=2)["error"]
    assert "--status" in call.error("list", "--stauts", "failed", code=2)["error"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["list", "--type"], "alpha"),
        (["list", "--queue"], "default"),
        (["status"], None),
        (["list", "--worker"], ""),
    ],
)
def test_the_shell_completes_names_of_the_store(call: Any, words: list[str], expected: str | None) -> None:
    task_id = call.submit("alpha")
    line = {
        "COMP_WORDS": " ".join(["qo", *words, ""]),
        "COMP_CWORD": str(len(words) + 1),
        "_QO_COMPLETE": "bash_complete",
    }
    result = CliRunner().invoke(main, [], env=line | {"QO_URL": call.url}, prog_name="qo")
    offered = [item.partition(",")[2] for item in result.stdout.split()]
    assert offered == ([task_id] if expected is None else [expected] if expected else [])


@pytest.mark.parametrize("words", [["list", "--worker"], ["workers", "drain"]])
def test_the_shell_completes_the_names_of_workers(call: Any, words: list[str]) -> None:
    call.submit("alpha")

    async def register() -> None:
        async with qo.connect(call.url) as client:
            note = WorkerNote(worker_id="web-1", started_at=0, last_heartbeat=system_clock(), capacity=1)
            await client.engine.write_note(WORKERS + "web-1", msgspec.json.encode(note), expected=ANY)

    asyncio.run(register())
    asked = {"COMP_WORDS": " ".join(["qo", *words, ""]), "COMP_CWORD": str(len(words) + 1)}
    result = CliRunner().invoke(
        main, [], env={**asked, "_QO_COMPLETE": "bash_complete", "QO_URL": call.url}, prog_name="qo"
    )
    assert [item.partition(",")[2] for item in result.stdout.split()] == ["web-1"]


def test_an_option_of_another_command_is_named_as_here(call: Any) -> None:
    for command, other, meant in (
        ("reschedule", "--delay", "--in"),
        ("reschedule", "--run-at", "--at"),
        ("reschedule", "--statsu", "--status"),
        ("priority", "--priority", "--to"),
    ):
        error = call.error(command, other, "5", code=2)["error"]
        assert "Did you mean" in error
        assert f"'{meant}'" in error


@pytest.mark.parametrize("text", ['{\n  "tasks": [],\n  "next": null\n}', '{"tasks": [], "next": null}', "[\n]"])
def test_a_listing_as_json_is_not_a_file_of_tasks(call: Any, text: str) -> None:
    assert "--json-lines" in call.error("submit", "-", code=2, input=text)["error"]
