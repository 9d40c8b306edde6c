"""`qo schedules`: list, show, add, pause, resume, run and remove."""

from tests.cli.conftest import Qo


def test_a_schedule_is_added_shown_paused_resumed_run_and_removed(call: Qo) -> None:
    added = call.json("schedules", "add", "acme", "--every", "5m", "--type", "sync", "--input", '{"customer": "acme"}')
    assert (added["name"], added["every"], added["payload"], len(added["next_fires"])) == (
        "acme", 300.0, {"customer": "acme"}, 5,
    )  # fmt: skip
    call("schedules", "add", "report", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "--type", "report")
    assert [each["name"] for each in call.json("schedules", "list")] == ["acme", "report"]
    shown = call("schedules", "show", "report").stdout
    assert "0 3 * * * Europe/Berlin" in shown and shown.count(" 03:00:00 +0") == 5
    assert call.json("schedules", "pause", "acme")["status"] == "paused"
    listed = call("schedules").stdout
    assert "paused" in listed and "every 5 m" in listed and "in " in listed
    task_id = call.json("schedules", "run", "acme")["task_id"]
    assert call.json("status", task_id)["payload"] == {"customer": "acme"}
    assert "manual run" in call("schedules", "show", "acme").stdout
    assert call.json("schedules", "resume", "acme")["status"] == "active"
    assert "removed acme" in call("schedules", "remove", "acme").stdout
    assert [each["name"] for each in call.json("schedules")] == ["report"]
    actions = [each["action"] for each in call.json("audit")["records"]]
    assert sorted(set(actions)) == [
        "schedule.add", "schedule.pause", "schedule.remove", "schedule.resume", "schedule.run",
    ]  # fmt: skip


def test_mistakes_name_the_option_and_missing_schedules_have_their_own_exit_code(call: Qo) -> None:
    call.submit()
    assert "no schedules" in call("schedules").stdout
    add = ("schedules", "add", "s", "--type", "t")
    assert "cron: '99 * * * *' is not a cron expression" in call(*add, "--cron", "99 * * * *", code=2).stderr
    assert "timezone: 'Mars' is not" in call(*add, "--every", "60", "--timezone", "Mars", code=2).stderr
    assert "pass a cron expression, or every=" in call(*add, code=2).stderr
    assert "every: 0.5 must be at least" in call(*add, "--every", "500ms", code=2).stderr
    assert "end_at" in call(*add, "--every", "60", "--end-at", "tomorrow", code=2).stderr
    for verb in ("show", "pause", "resume", "run", "remove"):
        assert "no schedule is called 'nobody'" in call("schedules", verb, "nobody", code=3).stderr
