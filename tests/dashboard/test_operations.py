"""Operating on a task in the dashboard: when it runs, its priority, and why it waits."""

import re

from playwright.sync_api import expect

from tests.dashboard.seen import Seen


def test_a_task_page_shows_why_it_is_waiting_and_can_run_it(seen: Seen) -> None:
    task = seen.queue.submit("unheard", {})
    seen.go(f"#/tasks/{task}")
    page = seen.page
    expect(page.locator("[data-reason=no_worker]")).to_have_text(
        "No running worker handles type unheard of queue default."
    )
    expect(page.locator("[data-action=run_now]")).to_have_count(0)  # it is due
    page.locator("[data-action=reschedule]").click()
    page.locator("dialog [data-field=run_at]").fill("2090-01-31T08:00")
    seen.picture("task-reschedule")
    page.locator("dialog [type=submit]").click()
    seen.told("1 task rescheduled.")
    expect(page.locator("[data-reason=scheduled]")).to_contain_text(re.compile("Due at 2090-01-3"))
    page.locator("[data-action=priority]").click()
    page.locator("dialog [data-field=priority]").select_option("0")
    page.locator("dialog [type=submit]").click()
    seen.told("1 task moved to the new priority.")
    expect(page.locator("[data-part=facts]")).to_contain_text("high")
    seen.picture("task-waiting")
    page.locator("[data-action=run_now]").click()
    seen.told("1 task made due.")
    expect(page.locator("[data-reason=scheduled]")).to_have_count(0)


def test_kinds_of_pending_tasks_are_counted_and_listed(seen: Seen) -> None:
    task = seen.queue.submit("unheard", {})
    answer = seen.queue.client.post(f"/api/v1/tasks/{task}/reschedule", json={"delay_seconds": 9999})
    assert answer.is_success
    seen.go("#/tasks?status=scheduled")
    page = seen.page
    expect(page.locator(f"tr a[href='#/tasks/{task}']")).to_be_visible()
    expect(page.locator(f"tr[data-id='{task}'] [data-kind]")).to_have_text("scheduled")
    expect(page.locator(".chip[data-status=scheduled]")).to_have_attribute("aria-pressed", "true")
    seen.picture("tasks-scheduled")
    seen.go("#/")
    expect(page.locator("[data-kinds]")).to_contain_text("scheduled")
    seen.picture("overview-kinds")
