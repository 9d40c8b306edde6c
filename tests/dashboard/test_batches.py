"""Batches: the list, the page of one, and the way from a task and to its tasks."""

import re

from playwright.sync_api import expect

from tests.dashboard.seen import Seen

LATER = "2099-01-01T00:00:00Z"


def test_a_batch_shows_its_progress_and_leads_to_its_tasks(seen: Seen):
    done = seen.queue.submit("greet", {"name": "Ada"}, batch="letters-1")
    failed = seen.queue.submit("explode", {}, batch="letters-1", max_retries=0)
    waiting = [seen.queue.submit("greet", {"name": name}, batch="letters-1", run_at=LATER) for name in ("Bo", "Cy")]
    seen.queue.until(done, "completed")
    seen.queue.until(failed, "failed")
    seen.go()
    seen.page.keyboard.press("g")
    seen.page.keyboard.press("b")
    expect(seen.page.locator("h1")).to_have_text("Batches")
    expect(seen.page.locator("nav a[aria-current=page]")).to_have_text("Batches")
    card = seen.page.locator('[data-batch="letters-1"]')
    expect(card).to_contain_text("2 of 4 tasks done, 1 failed")
    expect(card.locator("[data-share]")).to_have_text("50 %")
    seen.picture("batches")
    card.get_by_role("link").click()
    expect(seen.page.locator("h1")).to_have_text("letters-1")
    expect(seen.page.locator("[data-summary]")).to_have_text(re.compile("2 of 4 tasks done, 1 failed$"))
    counts = {status: seen.page.locator(f"[data-count={status}] b") for status in ("pending", "completed", "failed")}
    for status, number in (("pending", "2"), ("completed", "1"), ("failed", "1")):
        expect(counts[status]).to_have_text(number)
    seen.picture("batch")
    seen.queue.client.delete(f"/api/v1/tasks/{waiting[0]}")
    expect(seen.page.locator("[data-count=cancelled] b")).to_have_text("1")
    seen.page.locator("[data-list=tasks]").click()
    expect(seen.page.locator("tr[data-id]")).to_have_count(4)
    expect(seen.page.locator(".summary").first).to_contain_text("4 tasks")
    expect(seen.page.get_by_label("Batch")).to_have_value("letters-1")
    seen.row(failed).get_by_role("link", name="explode").click()
    seen.page.locator("[data-section=details]").get_by_role("link", name="letters-1").click()
    expect(seen.page.locator("[data-summary]")).to_contain_text("3 of 4 tasks done")


def test_an_unknown_batch_is_said_not_to_exist(seen: Seen):
    seen.go("#/batches/never-heard-of")
    expect(seen.page.locator("[data-state=error]")).to_contain_text("There is no batch never-heard-of")
