"""Schedules in test mode: declared with the app, fired when the test asks for it."""

from datetime import UTC, datetime

import pytest

import qo

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
seen: list[str] = []


def make_app(**options: object) -> qo.App:
    app = qo.App("sqlite:////nowhere/at/all/qo.db", **options)  # type: ignore[arg-type]

    @app.on("task_succeeded")
    def note(event: qo.TaskEvent) -> None:
        seen.append(event.task.type)

    @app.middleware
    async def surround(task: qo.Task, call_next: object) -> object:
        seen.append(f"before {task.type}")
        return await call_next()  # type: ignore[operator]

    @app.schedule(every=600, name="sync-acme", kwargs={"customer": "acme"}, catch_up="all")
    @app.task
    def sync(customer: str) -> str:
        return f"{customer} at {qo.current_task().run_at:.0f}"

    @app.schedule("0 3 * * *", timezone="Europe/Berlin", overlap="skip", jitter=60)
    @app.task(unique=qo.Unique())
    def report() -> None: ...

    return app


@pytest.mark.parametrize("options", [{}, {"codec": qo.Encrypted(keys=[qo.Encrypted.new_key()])}], ids=["", "encrypted"])
def test_fire_times_that_have_passed_are_submitted_and_run_with_the_hooks(options: dict[str, object]) -> None:
    seen.clear()
    with make_app(**options).test_mode(now=NOON) as t:
        assert [info.status for info in t.app.schedules.list()] == ["active", "active"]
        assert t.fire_schedules() == []
        t.advance(3 * 3600)
        tasks = t.fire_schedules()
        assert [task.type for task in tasks] == ["sync"] * 18
        assert t.fire_schedules() == []
        assert [attempt.result for attempt in t.drain()][-1] == f"acme at {t.now:.0f}"
        assert seen == ["before sync", "sync"] * 18


def test_the_rules_of_a_schedule_apply() -> None:
    with make_app().test_mode(now=NOON) as t:
        t.advance(2 * 24 * 3600)
        fired = t.fire_schedules()
        assert [task.type for task in fired if task.type == "report"] == ["report"], "only the last is caught up"
        t.advance(24 * 3600)
        assert "report" not in [task.type for task in t.fire_schedules()], "the earlier one has not finished"
        (skipped, *_) = t.app.schedules.get("report").recent
        assert skipped.outcome == "skipped"


async def test_an_async_test_fires_schedules_and_runs_one_by_hand() -> None:
    with make_app().test_mode(now=NOON) as t:
        t.advance(600)
        assert [task.type for task in await t.afire_schedules()] == ["sync"]
        await t.app.schedules.arun("report")
        assert [attempt.task.type for attempt in await t.adrain(advance=True)] == ["sync", "report"]


def test_an_app_without_schedules_has_none() -> None:
    with qo.App("sqlite:////nowhere/at/all/qo.db").test_mode() as t:
        t.advance(10**6)
        assert t.fire_schedules() == [] == t.app.schedules.list()
