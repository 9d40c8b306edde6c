"""The overview: figures, charts, controls; every button clicked."""

import re

from playwright.sync_api import Page, expect

from tests.dashboard.place import Place
from tests.dashboard.seen import Seen


def test_figures_charts_and_failures(seen: Seen):
    failed = seen.queue.submit("explode", {"reason": "the bank said no"}, queue="payments", max_retries=0)
    seen.queue.until(failed, "failed")
    done = seen.queue.submit("greet", {"name": "Ada"})
    seen.queue.until(done, "completed")
    seen.go()
    page = seen.page
    expect(page.locator("h1")).to_have_text("Overview")
    expect(page.locator(".where")).to_have_text("the test queue")
    expect(page.locator('.stat[data-status="failed"] b')).not_to_have_text("0")
    expect(page.locator(".stat.completed svg.spark")).to_be_visible()
    expect(page.locator(".chart svg .line.completed")).to_have_count(1)
    expect(page.locator(".chart svg .fill.failed").first).to_be_visible()
    expect(page.locator(".failures")).to_contain_text("ValueError: the bank said no")
    expect(page.locator('[data-queue="payments"] a').first).to_have_attribute("href", "#/tasks?queue=payments")
    expect(page.locator('.types [data-type="explode"] svg.bar')).to_have_attribute("aria-label", re.compile("failed"))
    expect(page.locator(".figures")).to_contain_text("Processing rate")
    page.locator(".chart svg").hover()
    expect(page.locator(".chart-caption")).to_contain_text(re.compile(r"\d\d:\d\d: \d+ completed"))
    seen.picture("overview")
    page.locator('.stat[data-status="failed"]').click()
    expect(page).to_have_url(re.compile(r"#/tasks\?status=failed$"))


def test_everything_is_paused_and_resumed(seen: Seen):
    seen.go()
    page = seen.page
    page.get_by_role("button", name="Pause", exact=True).click()
    seen.told("Everything paused")
    expect(page.locator(".notice")).to_contain_text("Everything is paused")
    assert seen.queue.get("overview")["controls"]["paused"]["all"]
    seen.picture("overview-paused")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator(".notice")).to_have_count(0)
    assert not seen.queue.get("overview")["controls"]["paused"]["all"]


def test_a_queue_and_a_type_are_paused_and_resumed(seen: Seen):
    seen.queue.until(seen.queue.submit("greet", {}, queue="side"), "completed")
    seen.go()
    page = seen.page
    page.get_by_role("button", name="Pause side", exact=True).click()
    expect(page.locator(".notice")).to_contain_text("Paused queues: side.")
    page.get_by_role("button", name="Pause greet", exact=True).click()
    expect(page.locator(".notice")).to_contain_text("Paused types: greet.")
    assert seen.queue.get("overview")["controls"]["paused"] == {"all": False, "queues": ["side"], "types": ["greet"]}
    page.get_by_role("button", name="Resume side", exact=True).click()
    page.get_by_role("button", name="Resume greet", exact=True).click()
    expect(page.locator(".notice")).to_have_count(0)


def test_a_rate_is_limited_and_the_limit_lifted(seen: Seen):
    seen.queue.until(seen.queue.submit("greet", {}), "completed")
    seen.go()
    page = seen.page
    page.get_by_role("button", name="Limit greet").click()
    page.locator("dialog input[type=number]").fill("2.5")
    seen.picture("dialog")
    seen.dialog("Set")
    expect(page.locator(".notice")).to_contain_text("greet: at most 2.5 per second.")
    page.get_by_role("button", name="Rate limit").click()
    page.locator("dialog input[type=number]").fill("100")
    seen.dialog("Set")
    expect(page.locator(".notice")).to_contain_text("Each worker starts at most 100 tasks per second.")
    assert seen.queue.get("overview")["controls"]["limits"] == {"greet": 2.5}
    for type in ("", "greet"):
        page.get_by_role("button", name="Rate limit").click()
        page.locator("dialog select").select_option(type)
        page.locator("dialog input[type=number]").fill("0")
        seen.dialog("Set")
    expect(page.locator(".notice")).to_contain_text("greet: no limit, even if the code sets one.")


def test_a_limit_for_all_workers_is_set_shown_and_removed(seen: Seen):
    seen.go()
    page = seen.page
    page.get_by_role("button", name="Fleet limit").click()
    page.locator("dialog input[type=text]").fill("greet")
    page.locator("dialog input[type=number]").first.fill("5")
    seen.picture("fleet-limit")
    seen.dialog("Set")
    expect(page.locator(".notice")).to_contain_text("type greet: at most 5 at a time across all workers.")
    fleet = seen.queue.get("overview")["controls"]["fleet"]
    assert fleet == {"type:greet": {"concurrency": 5, "rate": 0.0, "per": 1.0}}
    page.get_by_role("button", name="Fleet limit").click()
    page.locator("dialog input[type=text]").fill("greet")
    page.locator("dialog input[type=number]").first.fill("0")
    seen.dialog("Set")
    expect(page.locator(".notice").get_by_text("across all workers")).to_have_count(0)


def test_the_limit_on_types_is_shown_set_and_lifted(seen: Seen):
    for type in ("greet", "explode"):
        seen.queue.submit(type, {}, queue="typed", run_at="2099-01-01T00:00:00Z")
    seen.go()
    page = seen.page
    types = page.locator('[data-queue="typed"] [data-types]')
    expect(types).to_have_text("2 of 1,000")
    page.get_by_role("button", name="Type limit").click()
    field, problem = page.locator("dialog input"), page.locator("dialog [role=alert]")
    expect(field).to_have_value("1000")
    for wrong in ("", "-1", "2.5", "many", "10001"):
        field.fill(wrong)
        seen.dialog("Set")
        expect(problem).to_have_text("The limit must be a whole number from 0 to 10,000; 0 means no limit.")
    seen.picture("type-limit-refused")
    field.fill("2")
    seen.dialog("Set")
    seen.told("at most 2 types")
    expect(types).to_have_text("2 of 2")
    expect(types).to_have_class(re.compile("bad"))
    assert seen.queue.get("overview")["controls"]["max_types"] == 2
    seen.picture("type-limit")
    page.get_by_role("button", name="Type limit").click()
    field.fill("0")
    seen.dialog("Set")
    expect(types).to_have_text("2")
    assert seen.queue.get("overview")["controls"]["max_types"] == 0


def test_old_tasks_are_cleaned_up(seen: Seen):
    cancelled = seen.queue.submit("greet", {}, run_at="2099-01-01T00:00:00Z")
    seen.queue.client.delete(f"/api/v1/tasks/{cancelled}")
    seen.go()
    page = seen.page
    page.get_by_role("button", name="Clean up").click()
    page.locator("dialog select").select_option("0")
    page.locator("dialog").get_by_label("completed").uncheck()
    page.locator("dialog").get_by_label("cancelled").check()
    seen.dialog("Delete")
    seen.told("deleted.")
    assert seen.queue.client.get(f"/api/v1/dashboard/tasks/{cancelled}").status_code == 404


def test_news_arrives_by_itself_until_it_is_paused(seen: Seen):
    seen.go()
    page = seen.page
    expect(page.locator(".live")).to_have_text("Live")
    before = int(page.locator('.stat[data-status="cancelled"] b').inner_text())
    task = seen.queue.submit("greet", {}, run_at="2099-01-01T00:00:00Z")
    seen.queue.client.delete(f"/api/v1/tasks/{task}")
    expect(page.locator('.stat[data-status="cancelled"] b')).to_have_text(str(before + 1))
    page.locator(".live").click()
    expect(page.locator(".live")).to_have_text("Updates paused")
    page.locator(".live").click()
    expect(page.locator(".live")).to_have_text("Live")


def test_the_focus_stays_on_a_control_whose_part_is_redrawn(page: Page, empty_queue: Place):
    for name in ("a", "b"):
        empty_queue.submit("first", {}, queue=name)
    page.goto(f"{empty_queue.url}/ui/")
    link = page.locator('tr[data-queue="b"] th a')
    link.focus()
    empty_queue.submit("first", {}, queue="0")  # a row above
    expect(page.locator("tr[data-queue]")).to_have_count(3)
    expect(link).to_be_focused()
    page.get_by_role("button", name="Pause b").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume b")).to_be_focused()
    page.get_by_role("button", name="Limit first").focus()
    page.keyboard.press("Enter")
    expect(page.locator("dialog select")).to_have_value("first")
    empty_queue.submit("first", {}, queue="b")
    expect(page.locator("[data-type=first] .number")).to_contain_text("4")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Limit first")).to_be_focused()
