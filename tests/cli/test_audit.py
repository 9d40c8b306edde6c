"""`qo audit`: what the command line did, and by whom."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from qo.audit import cli_user
from qo.engines.sqlite import SqliteEngine
from qo.errors import OutcomeUnknown, StorageError
from tests.cli.conftest import Processes, Qo


def actions(call: Qo, *args: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = call.json("audit", *args)["records"]
    return records


def test_every_command_that_acts_is_in_the_trail(call: Qo) -> None:
    one, other = call.submit(), call.submit()
    call("cancel", one)
    call("cancel", one, code=4)  # it is cancelled already: nothing is done
    call("cancel", "--type", "add", "--older-than", "0s", "--yes")
    call("cancel", "--type", "add", "--yes")  # nothing is left to cancel
    call("replay", one, other)
    call("cancel", one, other)
    call("archive", one)
    call("delete", one)
    call("pause", "--queue", "mail", "--type", "crawl")
    call("resume")
    call("limit", "5", "--type", "crawl")
    call("token", "create", "--name", "ci", "--scopes", "read")
    call("token", "revoke", "ci")
    call("workers", "drain", "nobody", code=3)
    done = actions(call)[::-1]
    assert {(each["actor"], each["who"]) for each in done} == {("cli", cli_user())}
    assert [(each["action"], each["number"], each["task_ids"]) for each in done] == [
        ("cancel", 1, [one]),
        ("cancel", 1, [other]),
        ("replay", 2, [one, other]),
        ("cancel", 2, [one, other]),
        ("archive", 1, [one]),
        ("delete", 1, [one]),
        *((name, None, []) for name in ("pause", "resume", "limit", "token.create", "token.revoke")),
    ]
    targets = [each["target"] for each in done]
    assert targets[1] == "status pending running, type add, older than 0 s"
    assert targets[6:9] == ["queues mail, types crawl", "", "5 per second, type crawl"]
    assert targets[9].startswith("ci (") and targets[10].startswith("ci (")

    assert [each["action"] for each in actions(call, "--task", one.upper())] == [
        "delete", "archive", "cancel", "replay", "cancel"
    ]  # fmt: skip
    assert [each["action"] for each in actions(call, "--action", "pause,resume")] == ["resume", "pause"]
    assert len(actions(call, "--by", cli_user().upper())) == 11 and not actions(call, "--by", "somebody else")
    assert not actions(call, "--since", "0s")
    limited = call.json("audit", "--limit", "2")
    assert (len(limited["records"]), limited["more"]) == (2, True)
    shown = call("audit")
    assert "token.revoke" in shown.stdout and cli_user() in shown.stdout
    assert "no matching actions" in call("audit", "--by", "somebody else").stdout


def test_hostile_text_in_the_trail_is_shown_as_text(call: Qo, monkeypatch: pytest.MonkeyPatch) -> None:
    call.submit()
    monkeypatch.setattr("qo.cli.audit.cli_user", lambda: "\x1b[31m[bold]me\u202e")
    call("pause")
    shown = call("audit").stdout
    assert "\x1b[31m" not in shown and "\u202e" not in shown and "[bold]me" in shown


def test_an_action_whose_outcome_is_unknown_is_recorded_as_such(call: Qo, monkeypatch: pytest.MonkeyPatch) -> None:
    task = call.submit()

    async def lose(*_: object) -> list[bool]:
        raise OutcomeUnknown("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteEngine, "apply", lose)
        call("cancel", "--type", "add", "--yes", code=5)
        call("cancel", task, code=5)
    by_id, by_filter = actions(call)
    assert (by_filter["action"], by_filter["outcome"], by_filter["number"]) == ("cancel", "unknown", 0)
    assert (by_id["action"], by_id["outcome"], by_id["task_ids"]) == ("cancel", "unknown", [task])
    assert call.json("status", task)["status"] == "pending"
    assert "cancel?" in call("audit").stdout


def test_actions_succeed_if_the_trail_cannot_be_written(
    call: Qo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = call.submit()

    async def refuse(*_: object, **__: object) -> str:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR, "qo.audit"):
        patched.setattr(SqliteEngine, "write_note", refuse)
        call("cancel", task)
    assert call.json("status", task)["status"] == "cancelled"
    assert "not in the audit trail" in caplog.text and task in caplog.text


def test_processes_that_act_at_once_lose_no_record(processes: Processes) -> None:
    processes.run("migrate")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: processes.run("pause", "--queue", name), ("a", "b", "c")))
    records = json.loads(processes.run("audit", "--json"))["records"]
    assert sorted(each["target"] for each in records if each["action"] == "pause") == [
        "queues a",
        "queues b",
        "queues c",
    ]


def test_migrating_is_recorded_once(call: Qo) -> None:
    call("migrate")
    call("migrate")
    (record,) = actions(call)
    assert record["action"] == "migrate" and record["target"].startswith("schema none to ")
