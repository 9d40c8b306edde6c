import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import qo
from qo.cli import main
from qo.cli.output import duration
from qo.cli.rich_output import bar, panel, task_table
from qo.clock import system_clock
from qo.model import ANY, BLOCKED_AT, FailureKind, Status, after_error, complete
from qo.model.life_cycle import NOW, sample
from qo.notes import WORKERS, WorkerNote
from qo.safe_text import clean, clean_lines
from qo.testing.samples import claim_request

HOSTILE = '{"x": "[bold red]markup[/] [link=http://evil]l[/link] \\u001b[31mred\\u001b]0;title\\u0007 \\u202egnp.exe"}'
NOWHERE = "0f0190a4-0000-8000-8000-000000000000"
FIELDS = [
    "id", "queue", "type", "status", "payload", "result", "error", "failure_kind", "archived_from", "priority",
    "effective_priority", "needs", "group", "timeout", "max_retries", "retry", "attempt", "failures", "available_at",
    "lease_expires_at", "worker_id", "created_at", "updated_at", "started_at", "completed_at", "idempotency_key",
    "trace_id", "run_at", "batch", "progress", "progress_text", "version", "unhandled",
]  # fmt: skip
READERS = (
    ["status", NOWHERE], ["history", NOWHERE], ["list"], ["stats"], ["workers"], ["top", "--once"], ["pause"],
    ["resume"], ["limit", "1"], ["replay", NOWHERE], ["cancel", NOWHERE], ["archive", NOWHERE], ["delete", NOWHERE],
    ["monitor", "--once"],
)  # fmt: skip


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_looking_at_a_queue_that_is_not_there_does_not_make_one(call: Any, tmp_path: Path, command: list[str]) -> None:
    assert "no store exists at sqlite:///" in call.error(*command, code=5)["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_folder_is_no_empty_queue(call: Any, tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/missing", f"file://{tmp_path}/missing?layout=log"):
        call.url = url
        assert "no store exists at file:///" in call.error("stats", code=5)["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_folder_is_refused(call: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary")
    call.url = f"file://{tmp_path}/notes.txt"
    assert "notes.txt is a file, not a directory" in call.error("submit", "--type", "t", code=5)["error"]


@pytest.mark.parametrize("scheme", ["http", "redis", "redis+sentinel", "s3", "gs", "az"])
def test_an_address_without_its_closing_bracket_is_refused_in_one_sentence(call: Any, scheme: str) -> None:
    call.url = f"{scheme}://user:s3cret@[::1"
    error = call.error("stats", code=2)["error"]
    assert "is not a URL: Invalid IPv6 URL" in error and "s3cret" not in error


@pytest.mark.parametrize("group", [[], ["token"], ["batch"], ["workflow"], ["dashboard"], ["session"]])
def test_a_command_that_needs_another_word_shows_its_help(group: list[str]) -> None:
    shown = CliRunner().invoke(main, group)
    assert shown.exit_code == 2 and shown.stderr.startswith("Usage: ")
    said = json.loads(CliRunner().invoke(main, [*group, "--json"]).stderr)
    assert said["error"].startswith("Missing command")


@pytest.mark.parametrize("group", ["token", "batch", "workflow", "dashboard", "session", "schedules", "workers"])
def test_the_summaries_of_commands_are_whole_sentences(group: str) -> None:
    summaries = CliRunner().invoke(main, [group, "--help"]).stdout.partition("Commands:")[2].partition("Examples:")[0]
    assert summaries.strip() and "..." not in summaries


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_a_foreign_file_is_refused_untouched(call: Any, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "qo.db").write_text("dear diary, " * 20)
    assert "not a SQLite database" in call.error(*command, code=5)["error"]
    assert (tmp_path / "qo.db").read_text().startswith("dear diary")


def test_status_shows_the_fields_of_a_task_and_never_the_lease(call: Any) -> None:
    task_id = call.submit("t")
    assert list(call.json("status", task_id)) == FIELDS
    assert [task["id"] for task in call.json("status", task_id, task_id.upper())] == [task_id]
    assert task_id in call("status", task_id).stdout


def test_a_list_and_a_panel_tell_ready_scheduled_retrying_and_blocked_apart() -> None:
    ready = replace(sample(Status.PENDING), available_at=NOW, failures=0)
    later = replace(ready, available_at=NOW + 60)
    blocked = replace(ready, available_at=BLOCKED_AT)
    kinds = {"ready": ready, "scheduled": later, "retrying": replace(later, failures=1), "blocked": blocked}
    for kind, task in kinds.items():
        columns = {column.header: list(column.cells) for column in task_table([task], NOW, width=80).columns}
        assert [str(cell) for cell in columns["status"]] == [kind]
        assert str(panel(task, NOW).title) == f"{task.type} {kind}"


def test_a_wide_list_says_why_attempts_failed() -> None:
    task = sample(Status.FAILED)
    late = replace(task, error="late", failure_kind=FailureKind.TIMEOUT)
    assert "failure" not in [column.header for column in task_table([task], NOW, width=160).columns]
    assert "failure" not in [column.header for column in task_table([late], NOW, width=80).columns]
    columns = {column.header: list(column.cells) for column in task_table([task, late], NOW, width=160).columns}
    assert [str(cell) for cell in columns["failure"]] == ["", "timeout"]


def test_an_unknown_task_is_exit_code_3(call: Any) -> None:
    task_id = call.submit("t")
    assert NOWHERE in call.error("status", NOWHERE, code=3)["error"]
    result = call("status", NOWHERE, task_id, "--json", code=3)
    assert [task["id"] for task in json.loads(result.stdout)] == [task_id]
    assert NOWHERE in call.error("history", NOWHERE, code=3)["error"]
    assert call.error("status", "abc", code=2)["field"] == "id"


@pytest.mark.parametrize("command", [["status"], ["list"], ["history"], ["stats"], ["top", "--once"]])
def test_text_from_a_task_cannot_control_the_terminal(call: Any, command: list[str]) -> None:
    task_id = call.submit("t", "--input", HOSTILE, "--trace-id", "[bold]trace[/bold]", "--max-retries", "0")
    asyncio.run(_fail(call.url, "[red]boom[/red] \x1b[31m\x07\u202e"))
    about = [task_id] if command[0] in ("status", "history") else []
    shown = call(*command, *about).stdout
    assert not {"\x1b", "\x07", "\u202e", "\u009b"} & set(shown)
    if command[0] == "status":
        assert "[bold red]markup[/] [link=http://evil]l[/link]" in shown and "[bold]trace[/bold]" in shown
    if command[0] in ("status", "history", "top"):
        assert "[red]boom[/red]" in shown


async def _fail(url: str, error: str) -> None:
    async with qo.connect(url) as client:
        (task,) = await client.dequeue()
        await client.nack(task, error)


def test_history_shows_every_transition(call: Any) -> None:
    task_id = call.submit("t")
    asyncio.run(_fail(call.url, "no luck"))
    call("cancel", task_id)
    events = call.json("history", task_id)
    assert [event["status"] for event in events] == ["pending", "running", "pending", "cancelled"]
    assert events[2]["error"] == "no luck" and events[2]["failures"] == 1
    shown = call("history", task_id).stdout
    assert "no luck" in shown and "cancelled" in shown


def test_list_pages_through_everything_newest_first(call: Any) -> None:
    ids = [call.submit("t") for _ in range(7)][::-1]
    seen, after = [], ""
    while after is not None:
        page = call.json("list", "--limit", "3", "--after", after)
        seen += [task["id"] for task in page["tasks"]]
        after = page["next"]
    assert seen == ids
    assert [task["id"] for task in call.json("list", "--limit", "2", "--all-pages")["tasks"]] == ids
    assert call.json("list", "--limit", "7")["next"] is None
    assert call.error("list", "--after", "nonsense", code=2)["error"]


def test_list_filters(call: Any) -> None:
    mail = call.submit("email", "--queue", "mail")
    crawl = call.submit("crawl")
    call("cancel", crawl)

    def ids(*options: str) -> list[str]:
        return [task["id"] for task in call.json("list", *options)["tasks"]]

    assert ids("--type", "email,other") == ids("--queue", "mail") == ids("--status", "pending") == [mail]
    assert ids("--status", "cancelled", "--status", "failed") == [crawl]
    assert ids("--worker", "nobody") == []
    for task_id in (mail, crawl):
        assert task_id in ids("--shard", task_id[0])
    assert len(ids("--shard", "0-f")) == 2 and "hexadecimal" in call.error("list", "--shard", "g", code=2)["error"]
    assert call.error("list", "--status", "lost", code=2)["field"] == "statuses"


def test_archived_tasks_are_listed_only_when_asked_for(call: Any) -> None:
    task_id = call.submit("t")
    call("cancel", task_id)
    call("archive", task_id)
    assert call.json("list") == {"tasks": [], "next": None}
    assert [task["id"] for task in call.json("list", "--status", "archived")["tasks"]] == [task_id]


def test_pending_tasks_that_no_worker_handles_are_shown_where_people_look(call: Any) -> None:
    typo, ended, mail = call.submit("typo"), call.submit("typo"), call.submit("mail")
    call("cancel", ended)
    note = WorkerNote(worker_id="w", started_at=0, last_heartbeat=system_clock(), capacity=1, types=("mail",))

    async def register() -> None:
        async with qo.connect(call.url) as client:
            await client.engine.write_note(WORKERS + "w", msgspec.json.encode(note), expected=ANY)

    asyncio.run(register())
    assert call.json("stats")["unhandled"] == {"typo": 1}
    assert "no running worker handles this type: typo (1 task)" in call("stats").stdout
    assert "no running worker handles this type: typo (1 task)" in call("top", "--once").stdout
    assert "no running worker handles this type: typo (1 task)" in call("list").stdout
    assert "no worker handles" not in call("list", "--type", "mail").stdout
    listed = {task["id"]: task["unhandled"] for task in call.json("list")["tasks"]}
    assert listed == {typo: True, ended: False, mail: False}
    assert "no running worker handles this type" in call("status", typo).stdout
    assert call.json("status", typo)["unhandled"] is True and call.json("status", mail)["unhandled"] is False


def test_stats_counts_by_status_at_the_top(call: Any) -> None:
    for kind in ("a", "a", "b"):
        call.submit(kind)
    stats = call.json("stats")
    assert stats["pending"] == 3 and stats["failed"] == 0
    assert stats["by_type"]["a"]["pending"] == 2 and stats["by_queue"]["default"]["pending"] == 3
    assert "by type" in call("stats").stdout


def test_top_shows_one_frame(call: Any) -> None:
    call.submit("crawl")
    assert call.json("top")["stats"]["pending"] == 1
    assert {"at", "stats", "workers", "batches", "running", "recent_failures", "control"} == set(call.json("top"))
    shown = call("top", "--once").stdout
    assert "crawl" in shown and "no workers" in shown


def test_doctor_distinguishes_good_stores_from_bad_ones(call: Any, tmp_path: Path) -> None:
    call.submit("t")
    assert call.json("doctor")["ok"] is True
    (tmp_path / "foreign.db").write_text("x" * 200)
    bad = call.json("doctor", f"sqlite:///{tmp_path / 'foreign.db'}", code=1)
    assert bad["ok"] is False and any(finding["ok"] is False for finding in bad["findings"])
    assert "✘" in call("doctor", f"sqlite:///{tmp_path / 'foreign.db'}", code=1).stdout


def test_a_damaged_task_hides_no_other_and_is_named(call: Any, tmp_path: Path) -> None:
    healthy, bad = call.submit("t"), call.submit("t")
    with closing(sqlite3.connect(tmp_path / "qo.db")) as db, db:
        db.execute("UPDATE tasks SET retry = '{' WHERE id = ?", (bad,))
    assert [task["id"] for task in call.json("list")["tasks"]] == [healthy]
    assert f"task {bad} is damaged" in call.error("status", bad, code=5)["error"]
    assert call("status", healthy, bad, code=5).stderr.startswith("error: task")
    call.json("history", bad)
    assert call.json("stats")["pending"] == 1
    report = call.json("doctor", code=1)
    (finding,) = [finding for finding in report["findings"] if finding["ok"] is False]
    assert finding["name"] == "damage" and bad in finding["detail"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(call: Any, shell: str) -> None:
    assert "_QO_COMPLETE" in call("completion", shell).stdout


def test_the_shell_completes_commands() -> None:
    asked = {"_QO_COMPLETE": "bash_complete", "COMP_WORDS": "qo st", "COMP_CWORD": "1"}
    assert CliRunner().invoke(main, [], env=asked, prog_name="qo").stdout.split() == ["plain,status", "plain,stats"]


def test_the_version_is_shown() -> None:
    assert qo.__version__ in CliRunner().invoke(main, ["--version"]).output


def test_url_and_json_stand_before_or_after_the_command(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call.submit("t")
    run = CliRunner()
    for args in (["--json", "--url", call.url, "stats"], ["stats", "--url", call.url, "--json"]):
        assert json.loads(run.invoke(main, args).stdout)["pending"] == 1
    monkeypatch.setenv("QO_URL", call.url)
    assert json.loads(run.invoke(main, ["stats", "--json"]).stdout)["pending"] == 1
    assert json.loads(run.invoke(main, ["stats", "--json", "--url", "sqlite:///nowhere.db"]).stderr)["error"]


def test_a_password_is_not_shown() -> None:
    result = CliRunner().invoke(main, ["stats", "--url", "nosuch://me:secret@host/db"])
    assert result.exit_code == 2 and "secret" not in result.output and "me:***@host" in result.output


@pytest.mark.parametrize("args", [["frobnicate"], ["stats", "--frob"], ["status"], ["list", "--limit", "x"]])
def test_wrong_usage_is_exit_code_2_and_json_too(call: Any, args: list[str]) -> None:
    assert call.error(*args, code=2)["error"]
    assert "--help" in call(*args, code=2).stderr


def test_help_is_documentation() -> None:
    run = CliRunner()
    assert "130  interrupted" in run.invoke(main, ["--help"]).output
    for name in main.list_commands(None):  # type: ignore[arg-type]
        shown = run.invoke(main, [name, "--help"]).output
        assert "Examples:" in shown and f"qo {name}" in shown and "QO_URL" in shown and "--json" in shown


def test_small_things_read_well() -> None:
    assert [duration(seconds) for seconds in (0, 0.012, 3.25, 60, 303, 7500, 90_000)] == [
        "0 ms", "12 ms", "3.2 s", "1 m", "5 m 3 s", "2 h 5 m", "1 d 1 h",
    ]  # fmt: skip
    assert clean("a\x1b[1m\nb\u202e\ud800c") == r"a\x1b[1m b\u202e\ud800c" and clean_lines("a\r\nb\x00") == "a\nb\\x00"
    assert bar(0.5, 4, "").plain == "██" and bar(0.0, 4, "").plain == ""


def test_stats_since_tell_what_was_done(call: Any) -> None:
    async def work() -> None:
        async with qo.connect(call.url) as client:
            for number in range(3):
                await client.enqueue("mail", number, max_retries=0)
            for task, ended in zip(await client.dequeue("mail", batch_size=3), (True, True, False), strict=True):
                await (client.ack(task) if ended else client.nack(task, "boom"))

    asyncio.run(work())
    told = json.loads(call("stats", "--since", "1h", "--json").stdout)
    assert (told["completed"], told["failed"], told["dead_lettered"], told["retried"], told["lost"]) == (2, 1, 1, 0, 0)
    assert told["by_type"]["mail"]["run"]["number"] == 3 and told["by_type"]["mail"]["wait"]["p95"] >= 0
    assert "mail" in call("stats", "--since", "7d").stdout
    assert "'--since': statistics are kept for 7d" in call("stats", "--since", "8d", code=2).stderr


def test_logs_shows_the_lines_of_each_attempt(call: Any) -> None:
    task_id = call.submit()
    assert call("logs", task_id).stdout == "no log lines are stored\n"
    assert call.json("logs", task_id) == []
    asyncio.run(_run_with_log(call.url, task_id))
    shown = call("logs", task_id).stdout
    assert shown == "attempt 1, completed\n12:00 info shop: one\n12:00 info shop: \\x1b[31mtwo\n"
    assert call.json("logs", task_id, "--attempt", "1")[0]["log"][0] == "12:00 info shop: one"
    assert call.json("logs", task_id, "--attempt", "2") == []
    assert call("logs", task_id, "--follow").stdout == shown
    call.error("logs", NOWHERE, code=3)


async def _run_with_log(url: str, task_id: str) -> None:
    async with qo.connect(url) as client:
        (task,) = await client.engine.claim(claim_request(types=("add",)))
        assert task.id == task_id
        log = "12:00 info shop: one\n12:00 info shop: \x1b[31mtwo"
        assert await client.engine.apply([complete(task, log=log)]) == [True]


def test_logs_shows_that_an_attempt_is_retried(call: Any) -> None:
    task_id = call.submit()

    async def fail() -> None:
        async with qo.connect(call.url) as client:
            (task,) = await client.engine.claim(claim_request(types=("add",)))
            assert await client.engine.apply([after_error(task, "boom", random=0.5, log="12:00 info shop: one")]) == [
                True
            ]

    asyncio.run(fail())
    assert call("logs", task_id).stdout == "attempt 1, failed, to be retried\n12:00 info shop: one\n"
