"""Limits across all workers: their numbers, who holds the slots, what waits, and the buttons."""

from datetime import datetime, timedelta
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.dashboard.place import Place
from tests.dashboard.seen import Seen, picture

NOTICED = 2.5  # seconds: a worker claims no task with controls that are older than a second


def card(page: Page, scope: str) -> Locator:
    return page.locator(f'[data-limit="{scope}"]')


def post(queue: Place, path: str, body: dict[str, object]) -> None:
    answer = queue.client.post(f"/api/v1/{path}", json=body)
    assert answer.is_success, answer.text


def later(queue: Place) -> str:
    """When the worker knows the limits and pauses that are set now."""
    now = datetime.fromisoformat(queue.get("overview")["at"])
    return (now + timedelta(seconds=NOTICED)).isoformat()


def charge(seen: Seen, customer: str, file: str, number: int) -> list[str]:
    payload = {"customer": customer, "file": str(seen.queue.folder / file)}
    return [seen.queue.submit("charge", payload, fair_by="customer") for _ in range(number)]


def test_a_limit_in_the_code_shows_who_holds_its_slots_and_what_waits(seen: Seen):
    file = seen.queue.file("charge")
    first, *_ = charge(seen, "ada", file.name, 5)
    charge(seen, "bob & <b>sons</b>", file.name, 1)
    seen.go()
    seen.page.keyboard.press("g")
    seen.page.keyboard.press("l")
    expect(seen.page.locator("h1")).to_have_text("Limits")
    expect(seen.page.locator("nav a[aria-current=page]")).to_have_text("Limits")
    shown = card(seen.page, "type:charge")
    expect(shown.locator("[data-part=numbers]")).to_contain_text("At most 2 at a time for each customer.")
    expect(shown.locator("header .badge")).to_have_text("in the code")
    expect(shown.get_by_role("button", name="Remove")).to_have_count(0)
    ada = shown.locator('[data-group="customer=ada"]')
    expect(ada.locator("th")).to_have_text("ada")
    expect(ada.locator(".slots")).to_have_text("2 of 2")
    expect(ada.locator("td.number").first).to_have_text("3")
    expect(ada.locator("[data-part=waits]")).to_have_text("a slot of customer=ada (2 of 2 running)")
    expect(ada.locator(".holders li")).to_have_count(2)
    expect(ada.locator(".holders li").first).to_contain_text("in worker-a")
    other = shown.locator("tr", has_text="bob & <b>sons</b>")
    expect(other.locator(".slots")).to_have_text("1 of 2")
    expect(other.locator("[data-part=waits]")).to_have_count(0)
    expect(seen.page.locator(".summary")).to_contain_text("1 reached")
    seen.picture("limits")
    ada.get_by_role("button", name="Limit customer=ada").click()
    expect(seen.page.locator("dialog input[type=text]")).to_have_value("customer=ada")
    expect(seen.page.locator("dialog input[type=number]").first).to_have_value("2")
    seen.page.locator("dialog input[type=number]").first.fill("3")
    seen.dialog("Set")
    seen.told("customer=ada: at most 3 at a time across all workers.")
    expect(ada.locator(".slots")).to_have_text("3 of 3")
    value = card(seen.page, "key:customer=ada")
    expect(value.locator('[data-group="charge"] .slots')).to_have_text("3 of 3")
    value.get_by_role("button", name="Remove").click()
    seen.dialog("Remove")
    seen.told("The limit of customer=ada was removed.")
    expect(value).to_have_count(0)
    file.unlink()
    seen.queue.until(first, "completed")
    expect(ada).to_have_count(0)


def test_a_limit_is_set_changed_and_removed(seen: Seen):
    file = seen.queue.file("limited")
    seen.go("#/limits")
    seen.page.locator("[data-do=fleet-limit]").click()
    seen.page.locator("dialog input[type=text]").fill("hold")
    seen.page.locator("dialog input[type=number]").first.fill("1")
    seen.dialog("Set")
    seen.told("hold: at most 1 at a time across all workers.")
    tasks = [seen.queue.submit("hold", {"file": str(file)}, run_at=later(seen.queue)) for _ in range(3)]
    shown = card(seen.page, "type:hold")
    expect(shown.locator("header .badge")).to_have_text("set at run time")
    expect(shown.locator(".slots")).to_have_text("1 of 1")
    expect(shown.locator("[data-part=numbers]")).to_have_text("At most 1 at a time. 2 pending tasks.")
    expect(shown.locator("[data-part=waits]")).to_have_text("a slot of type hold (1 of 1 running)")
    shown.locator("[data-do=change]").click()
    expect(seen.page.locator("dialog input[type=text]")).to_have_value("hold")
    seen.page.locator("dialog input[type=number]").first.fill("2")
    seen.dialog("Set")
    expect(shown.locator(".slots")).to_have_text("2 of 2")
    expect(shown.locator(".holders li")).to_have_count(2)
    shown.locator(".holders a").first.click()
    expect(seen.page.locator("h1")).to_contain_text("hold")
    seen.go("#/limits")
    shown.get_by_role("button", name="Remove").click()
    seen.dialog("Remove")
    expect(shown).to_have_count(0)
    file.unlink()
    for task in tasks:
        seen.queue.until(task, "completed")


def test_a_value_with_spaces_is_limited_and_a_bad_one_is_explained(seen: Seen):
    page = seen.page
    seen.go("#/limits")
    page.locator("[data-do=fleet-limit]").click()
    page.locator("dialog select").select_option("key")
    page.locator("dialog input[type=text]").fill("customer")
    concurrency = page.locator("dialog input[type=number]").first
    concurrency.fill("10001")
    assert "10000" in str(concurrency.evaluate("each => each.validationMessage"))
    concurrency.fill("3")
    seen.dialog("Set")
    expect(page.locator("dialog [role=alert]")).to_contain_text(
        "is not an argument and its value, such as customer_id=42"
    )
    page.locator("dialog input[type=text]").fill("customer=Zoë & Söhne")
    seen.dialog("Set")
    shown = page.locator(".limit", has_text="customer=Zoë & Söhne")
    expect(shown.locator("h2")).to_have_text("customer=Zoë & Söhne")
    shown.get_by_role("button", name="Remove").click()
    seen.dialog("Remove")
    expect(shown).to_have_count(0)


def test_every_group_can_be_shown(seen: Seen):
    """A task without the argument of its limit has the group `customer=%`, which is not an escaped text."""
    seen.go()
    groups = ["customer=%", "customer=Zo%C3%AB", "customer=%E0", "customer=42"]
    shown = "groups => import('./parts/format.js').then(format => groups.map(format.shownGroup))"
    assert seen.page.evaluate(shown, groups) == ["no customer", "customer=Zoë", "customer=%E0", "customer=42"]


def test_of_many_groups_those_with_most_waiting_tasks_are_shown(seen: Seen):
    post(seen.queue, "controls/pause", {"type": "charge"})
    file = str(seen.queue.folder / "gone")
    start = later(seen.queue)  # a worker that has not read the pause yet would run some of them
    tasks = [
        {
            "task_type": "charge",
            "parameters": {"customer": f"c{n}", "file": file},
            "fair_by": "customer",
            "run_at": start,
        }
        for n in [*range(200), 150]
    ]
    seen.queue.submit_many(tasks)
    seen.go("#/limits")
    shown = card(seen.page, "type:charge")
    expect(shown.locator("tbody tr")).to_have_count(50)
    expect(shown.locator("tbody tr").first).to_have_attribute("data-group", "customer=c150")
    expect(shown.locator("[data-part=more]")).to_have_text("and 150 more groups with fewer waiting tasks")
    seen.picture("limits-200-groups")
    post(seen.queue, "dashboard/act", {"action": "cancel", "filter": {"type": ["charge"], "status": ["pending"]}})
    expect(shown.locator("tbody tr")).to_have_count(0)
    post(seen.queue, "controls/resume", {"type": "charge"})


def test_a_rate_shows_when_the_next_task_may_start(seen: Seen):
    post(seen.queue, "limits", {"type": "greet", "rate": 1, "per": 3600})
    tasks = [seen.queue.submit("greet", {}, run_at=later(seen.queue)) for _ in range(2)]
    seen.go("#/limits")
    waits = card(seen.page, "type:greet").locator("[data-part=waits]")
    expect(waits).to_contain_text("the rate limit of type greet (at most 1 start in 3600 s), in ")
    seen.picture("limits-rate")
    post(seen.queue, "limits", {"type": "greet", "remove": True})
    for task in tasks:
        seen.queue.until(task, "completed")


def test_a_store_without_limits_shows_how_to_set_one(page: Page, empty_queue: Place):
    seen = Seen(page, empty_queue)
    seen.go("#/limits")
    expect(page.locator("[data-state=empty]")).to_contain_text("qo limit --type send_email --concurrency 20")
    picture(page, "limits-none")


def test_a_page_of_a_caller_that_may_only_read_has_no_buttons(page: Page, empty_queue: Place):
    post(empty_queue, "limits", {"type": "hold", "concurrency": 1})
    page.route(
        "**/dashboard/session",
        lambda route: route.fulfill(json=_read_only(empty_queue)),
    )
    seen = Seen(page, empty_queue)
    seen.go("#/limits")
    shown = card(page, "type:hold")
    expect(shown.locator(".slots")).to_have_text("0 of 1")
    expect(page.locator("main button")).to_have_count(0)


def _read_only(queue: Place) -> dict[str, object]:
    session: dict[str, Any] = queue.get("session")
    return session | {"can": dict.fromkeys(session["can"], False)}
