"""The list: filters, order, pages, actions on one, on some, on all that match; the address holds it all."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import expect

from tests.dashboard.place import Place
from tests.dashboard.seen import Seen

LATER = "2099-01-01T00:00:00Z"
UNHANDLED_TIMEOUT = 60_000  # milliseconds; a slow server counts such tasks every 30 seconds


@pytest.fixture
def waiting(queue: Place) -> Iterator[list[str]]:
    """Three tasks of a type no other test uses, due in years."""
    made = [
        queue.submit("listed", {"name": name}, run_at=LATER, queue="shelf", priority=level)
        for name, level in (("Ada", "high"), ("Grace", "medium"), ("Barbara", "low"))
    ]
    yield made
    queue.client.post("/api/v1/dashboard/act", json={"action": "cancel", "filter": {"type": ["listed"]}})
    queue.client.post("/api/v1/dashboard/act", json={"action": "delete", "filter": {"type": ["listed"]}})


def rows(seen: Seen) -> list[str]:
    return [str(row.get_attribute("data-id")) for row in seen.page.locator("tr[data-id]").all()]


def test_filters_narrow_and_the_address_says_so(seen: Seen, waiting: list[str]):
    seen.go("#/tasks")
    page = seen.page
    page.get_by_label("Type", exact=True).select_option("listed")
    expect(page.locator("tr[data-id]")).to_have_count(3)
    assert rows(seen) == waiting[::-1]
    page.locator('.chip[data-status="pending"]').click()
    expect(page.locator('.chip[data-status="pending"]')).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".summary").first).to_contain_text("3 tasks")
    page.get_by_label("Queue", exact=True).select_option("shelf")
    page.get_by_label("Priority", exact=True).select_option("9")
    expect(page.locator("tr[data-id]")).to_have_count(1)
    page.get_by_label("Priority", exact=True).select_option("")
    page.get_by_label("Search").fill("grace")
    expect(page.locator("tr[data-id]")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"#/tasks\?type=listed&queue=shelf&text=grace&status=pending$"))
    page.reload()
    expect(seen.row(waiting[1])).to_be_visible()
    expect(page.locator("tr[data-id]")).to_have_count(1)
    expect(page.get_by_label("Search")).to_have_value("grace")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("tr[data-id]")).not_to_have_count(1)
    expect(page).to_have_url(re.compile(r"#/tasks$"))
    page.get_by_label("Worker").fill("nobody-here")
    expect(page.locator("[data-state=empty]")).to_contain_text("No matching tasks")
    page.go_back()


def test_back_off_and_schedules_are_visible(seen: Seen, waiting: list[str]):
    seen.go("#/tasks?type=listed")
    expect(seen.row(waiting[0])).to_contain_text(re.compile("due in .* y"))
    again = seen.queue.submit("stumble", {"reason": "hung up"}, max_retries=9)
    task = seen.queue.until(again, "pending")
    seen.go("#/tasks?type=stumble")
    expect(seen.row(task["id"])).to_contain_text(re.compile("failed"))
    seen.queue.client.delete(f"/api/v1/tasks/{again}")


def test_order_and_pages(seen: Seen, waiting: list[str]):
    seen.go("#/tasks?type=listed&sort=rank")
    expect(seen.row(waiting[0])).to_be_visible()
    assert rows(seen) == waiting  # high first
    many = [{"task_type": "paged", "run_at": LATER} for _ in range(120)]
    seen.queue.submit_many(many)
    seen.go("#/tasks?type=paged")
    page = seen.page
    expect(page.locator("tr[data-id]")).to_have_count(50)
    first = rows(seen)
    page.get_by_role("button", name="Next").click()
    expect(page.locator(f'tr[data-id="{first[0]}"]')).to_have_count(0)
    page.get_by_role("button", name="Next").click()
    expect(page.locator("tr[data-id]")).to_have_count(20)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Previous").click()
    expect(page.locator("tr[data-id]")).to_have_count(50)
    page.get_by_role("button", name="Previous").click()
    expect(seen.row(first[0])).to_be_visible()
    expect(page.get_by_role("button", name="Previous")).to_be_disabled()
    # all that match, on every page
    page.get_by_label("Select the page").check()
    expect(page.locator(".selection")).to_contain_text("50 tasks selected")
    page.get_by_role("button", name="Select all 120 matching tasks").click()
    seen.picture("tasks-selected")
    page.locator(".selection").get_by_role("button", name="Cancel").click()
    expect(page.locator("dialog h2")).to_have_text("Cancel all 120 matching tasks?")
    seen.dialog("Cancel")
    seen.told("120 tasks cancelled.")
    assert seen.queue.get("tasks", type="paged", status="pending")["total"] == 0
    page.get_by_label("Select the page").check()
    page.get_by_role("button", name="Select all 120 matching tasks").click()
    page.locator(".selection").get_by_role("button", name="Delete").click()
    seen.dialog("Delete")
    seen.told("120 tasks deleted.")
    expect(page.locator("[data-state=empty]")).to_be_visible()


def test_a_row_is_cancelled_replayed_archived_and_deleted(seen: Seen, waiting: list[str]):
    task = waiting[0]
    seen.go("#/tasks?type=listed&status=pending&status=cancelled&status=archived")
    row = seen.row(task)
    expect(row.locator("[data-kind]")).to_have_text("scheduled")
    row.get_by_role("button", name="Cancel listed").click()
    seen.dialog("Back")
    expect(row.locator(".badge")).to_have_text("pending")
    row.get_by_role("button", name="Cancel listed").click()
    seen.dialog("Cancel")
    expect(row.locator(".badge")).to_have_text("cancelled")
    row.get_by_role("button", name="Archive listed").click()
    expect(row.locator(".badge")).to_have_text("archived")
    row.get_by_role("button", name="Replay listed").click()
    expect(row.locator(".badge")).to_have_text("pending")
    expect(row).to_contain_text("no running worker handles this type", timeout=UNHANDLED_TIMEOUT)
    row.get_by_role("button", name="Cancel listed").click()
    seen.dialog("Cancel")
    expect(row.locator(".badge")).to_have_text("cancelled")
    row.get_by_role("button", name="Delete listed").click()
    seen.dialog("Delete")
    expect(row).to_have_count(0)


def test_some_are_selected_and_acted_on_and_refusals_are_shown(seen: Seen, waiting: list[str]):
    seen.go("#/tasks?type=listed")
    page = seen.page
    for task in waiting[:2]:
        seen.row(task).get_by_role("checkbox").check()
    expect(page.locator(".selection")).to_contain_text("2 tasks selected")
    page.locator(".selection").get_by_role("button", name="Replay").click()
    seen.told("2 tasks not replayed; the first: the task is pending")
    page.locator(".selection").get_by_role("button", name="Cancel").click()
    seen.dialog("Cancel")
    seen.told("2 tasks cancelled.")
    expect(seen.row(waiting[1]).locator(".badge")).to_have_text("cancelled")
    expect(seen.row(waiting[2]).locator(".badge")).to_have_text("pending")
    expect(page.locator(".selection")).to_be_hidden()


def test_the_keyboard_is_enough(seen: Seen, waiting: list[str]):
    seen.go("#/tasks?type=listed")
    page = seen.page
    expect(seen.row(waiting[0])).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(seen.row(waiting[1])).to_have_class(re.compile("current"))
    page.keyboard.press("k")
    page.keyboard.press("x")
    expect(page.locator(".selection")).to_contain_text("1 task selected")
    page.keyboard.press("Escape")
    expect(page.locator(".selection")).to_be_hidden()
    page.keyboard.press("a")
    expect(page.locator(".selection")).to_contain_text("3 tasks selected")
    page.keyboard.press("c")
    expect(page.locator("dialog h2")).to_have_text("Cancel 3 tasks?")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("gj")  # in a field, keys are letters
    expect(page.get_by_label("Search")).to_have_value("gj")
    expect(seen.row(waiting[2])).to_be_hidden()
    page.get_by_label("Search").fill("")
    page.keyboard.press("Escape")
    expect(seen.row(waiting[2])).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator("tr.current")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("listed")
    page.keyboard.press("u")
    expect(page.locator("h1")).to_have_text("Tasks")
    for key, title in (("w", "Workers"), ("o", "Overview"), ("t", "Tasks")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(title)
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("Keyboard")
    for action in ("replay", "run now", "reschedule", "priority", "cancel", "archive", "delete"):
        expect(page.locator("dialog dd").get_by_text(action, exact=True)).to_be_visible()
    seen.picture("keyboard")
    page.get_by_label("Enable shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_have_count(0)


def test_r_replays_one_and_several_tasks_in_the_list_and_one_on_its_page(seen: Seen, waiting: list[str]):
    page = seen.page
    cancel = {"action": "cancel", "filter": {"type": ["listed"]}}
    seen.queue.client.post("/api/v1/dashboard/act", json=cancel)
    seen.go("#/tasks?type=listed&status=cancelled")
    expect(page.locator("tr[data-id]")).to_have_count(3)
    page.keyboard.press("j")
    page.keyboard.press("r")
    seen.told("1 task replayed.")
    expect(page.locator("tr[data-id]")).to_have_count(2)
    page.keyboard.press("a")
    page.keyboard.press("r")
    seen.told("2 tasks replayed.")
    seen.queue.client.post("/api/v1/dashboard/act", json=cancel)
    seen.go(f"#/tasks/{waiting[0]}")
    expect(page.locator("h1 .badge")).to_have_text("cancelled")
    page.keyboard.press("r")
    expect(page.locator("h1 .badge")).to_have_text("pending")


def test_r_replays_a_completed_task_after_a_question(seen: Seen):
    task = seen.queue.submit("greet", {})
    seen.queue.until(task, "completed")
    page = seen.page
    for where, title in ((f"#/tasks?text={task}", "Tasks"), (f"#/tasks/{task}", "greet completed")):
        seen.go(where)
        expect(page.locator("h1")).to_have_text(title)
        expect(page.locator("main")).to_contain_text("completed")
        page.keyboard.press("j")  # on the page of a task, not a shortcut
        page.keyboard.press("r")
        expect(page.locator("dialog h2")).to_have_text("Replay 1 task?")
        expect(page.locator("dialog")).to_contain_text("It loses its result.")
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)


def test_the_reason_why_a_task_waits_does_not_push_the_buttons_out_of_the_window(seen: Seen):
    task = seen.queue.submit("nobody-handles-this-type-with-a-long-name", {})
    seen.go("#/tasks?type=nobody-handles-this-type-with-a-long-name")
    expect(seen.row(task)).to_contain_text("no running worker handles this type", timeout=UNHANDLED_TIMEOUT)
    expect(seen.row(task).get_by_role("button", name="Cancel")).to_be_in_viewport(ratio=1)


def test_a_scheduled_task_that_becomes_due_is_shown_as_ready(seen: Seen):
    """No request changes the task meanwhile."""
    soon = (datetime.now(UTC) + timedelta(seconds=4)).isoformat()
    task = seen.queue.submit("soon-due", {}, run_at=soon)
    seen.go("#/tasks?type=soon-due")
    expect(seen.row(task).locator("[data-kind]")).to_have_text("scheduled")
    expect(seen.row(task).get_by_role("button", name="Run now")).to_be_visible()
    expect(seen.row(task).locator("[data-kind]")).to_have_text("ready")
    expect(seen.row(task)).to_contain_text("waiting for")
    expect(seen.row(task).get_by_role("button", name="Run now")).to_have_count(0)
