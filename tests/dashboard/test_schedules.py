"""Schedules: what comes next, how the last ones ended, and the buttons."""

from playwright.sync_api import expect

from tests.dashboard.seen import Seen


def put(seen: Seen, name: str, **options: object) -> None:
    answer = seen.queue.client.put(f"/api/v1/schedules/{name}", json={"type": "report", **options})
    assert answer.is_success, answer.text


def test_a_schedule_shows_its_fire_times_and_results_and_is_paused_resumed_and_run(seen: Seen):
    put(seen, "nightly", cron="0 3 * * *", timezone="Europe/Berlin", overlap="skip", jitter=90)
    put(seen, "later", every=86400, start_at="2090-01-01T00:00:00Z")
    seen.go()
    seen.page.keyboard.press("g")
    seen.page.keyboard.press("s")
    expect(seen.page.locator("h1")).to_have_text("Schedules")
    expect(seen.page.locator("nav a[aria-current=page]")).to_have_text("Schedules")
    card = seen.page.locator('[data-schedule="nightly"]')
    expect(card).to_contain_text("0 3 * * * Europe/Berlin")
    expect(card).to_contain_text("up to 1 min 30 s")
    own = seen.page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone")
    title = "Next" if own == "Europe/Berlin" else f"Next, in {own} time"
    expect(card.locator("h3", has_text="Next")).to_have_text(title)
    expect(card.locator("[data-list=next] li")).to_have_count(5)
    expect(card.locator("header .badge")).to_have_text("active")
    expect(seen.page.locator('[data-schedule="later"]')).to_contain_text("every 1 d")
    expect(seen.page.locator('[data-schedule="later"]')).to_contain_text("1 Jan 2090")
    card.get_by_role("button", name="Run now").click()
    seen.told("A task of nightly was submitted.")
    expect(card.locator("[data-list=recent] li")).to_contain_text("manual run")
    expect(card.locator("[data-list=recent] .badge")).to_have_text("pending")
    card.get_by_role("button", name="Pause").click()
    seen.told("Schedule nightly paused.")
    expect(card.locator("header .badge")).to_have_text("paused")
    expect(card.locator("[data-list=next]")).to_have_count(0)
    seen.picture("schedules")
    card.get_by_role("button", name="Resume").click()
    expect(card.locator("header .badge")).to_have_text("active")
    card.locator("[data-list=recent] a").click()
    expect(seen.page.locator("h1")).to_contain_text("report")


def test_a_store_without_schedules_shows_how_to_add_one(seen: Seen):
    for schedule in seen.queue.client.get("/api/v1/schedules").json()["schedules"]:
        seen.queue.client.delete(f"/api/v1/schedules/{schedule['name']}")
    seen.go("#/schedules")
    expect(seen.page.locator("[data-state=empty]")).to_contain_text("qo schedules add")
    put(seen, "first", every=60)
    expect(seen.page.locator('[data-schedule="first"]')).to_be_visible()
