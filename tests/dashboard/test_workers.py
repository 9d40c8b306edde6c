"""Workers: who they are, what they run, and letting one go."""

import re

from playwright.sync_api import expect

from tests.dashboard.place import TIMEOUT
from tests.dashboard.seen import Seen


def test_a_worker_shows_what_it_runs_and_is_drained(seen: Seen):
    held = seen.queue.file("draining")
    with seen.queue.worker("worker-b", "--capabilities", "gpu", "--queues", "heavy", "--concurrency", "4") as process:
        task = seen.queue.submit("hold", {"file": str(held)}, queue="heavy", required_capabilities=["gpu"])
        seen.queue.until(task, "running")
        seen.go("#/workers")
        page = seen.page
        card = page.locator('[data-worker="worker-b"]')
        expect(card.locator(".badge")).to_have_text("busy")
        expect(card).to_contain_text("1 / 4")
        expect(card.locator(".tag", has_text="gpu")).to_be_visible()
        expect(card.locator(".tag", has_text="heavy")).to_be_visible()
        expect(card.locator(".current-tasks a")).to_have_attribute("href", f"#/tasks/{task}")
        expect(page.locator('[data-worker="worker-a"]')).to_be_visible()
        page.locator('.chip[data-state="busy"]').click()
        expect(page).to_have_url(re.compile("show=busy"))
        expect(page.locator('[data-worker="worker-a"]')).to_have_count(0)
        page.locator('.chip[data-state="busy"]').click()
        seen.picture("workers")
        card.get_by_role("button", name="Drain").click()
        seen.dialog("Drain")
        seen.told("worker-b is draining.")
        expect(card.locator(".badge")).to_have_text("draining")
        expect(card.get_by_role("button", name="Drain")).to_have_count(0)
        held.unlink()
        assert process.wait(TIMEOUT) == 0
        expect(card).to_have_count(0)
    assert seen.queue.until(task, "completed")["result"] == "let go"
