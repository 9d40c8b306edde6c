"""Nothing there, not yet there, gone wrong, nobody looking; small and large, light and dark."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from qo.engines.sqlite import SqliteEngine
from tests.conditions import wait_until
from tests.dashboard.chromium import FILES
from tests.dashboard.place import Place
from tests.dashboard.seen import Seen, picture
from tests.web.serving import Served, served

HIDE = """hidden => {
  Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event('visibilitychange'));
}"""
WIDTHS = {"phone": 360, "desk": 1280, "wide": 2200}
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


@pytest.fixture
def nothing(tmp_path: Path) -> Iterator[Served]:
    with served(SqliteEngine(tmp_path / "qo.db")) as api:
        yield api


def test_an_empty_queue_shows_what_to_do(page: Page, nothing: Served):
    page.goto(f"{nothing.url}/")
    expect(page.locator("h1")).to_have_text("Overview")
    expect(page.locator("main")).to_contain_text("No tasks yet")
    expect(page.locator("main")).to_contain_text("Nothing has failed")
    picture(page, "empty-overview")
    page.goto(f"{nothing.url}/ui/#/tasks")
    expect(page.locator("h1")).to_have_text("Tasks")
    expect(page.locator("[data-state=empty]")).to_contain_text("qo submit --type hello")
    page.goto(f"{nothing.url}/ui/#/workers")
    expect(page.locator("h1")).to_have_text("Workers")
    expect(page.locator("[data-state=empty]")).to_contain_text("No workers connected")
    expect(page.locator("[data-state=empty]")).to_contain_text("qo worker MODULE:APP")
    page.goto(f"{nothing.url}/ui/#/moon")
    expect(page.locator("main")).to_contain_text("Page not found")


def test_loading_is_said_and_a_late_answer_is_shown(seen: Seen):
    held: list[Route] = []
    seen.page.route("**/dashboard/overview", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks the function
    seen.page.goto(f"{seen.queue.url}/ui/")
    expect(seen.page.locator("[data-state=loading]")).to_be_visible()
    seen.picture("loading")
    # The page shows that it loads before Playwright reports its request. Each call to the page dispatches such reports.
    (route, *_) = wait_until(lambda: seen.page.evaluate("true") and held)
    route.continue_()
    expect(seen.page.locator("h1")).to_have_text("Overview")


def test_an_error_is_shown_and_tried_again(seen: Seen):
    page = seen.page
    page.route("**/dashboard/tasks?*", lambda route: route.abort())
    page.goto(f"{seen.queue.url}/ui/#/tasks")
    expect(page.locator("[data-state=error]")).to_contain_text("The server cannot be reached.")
    seen.picture("error")
    page.locator(".live").click()  # paused, it does not try by itself
    page.unroute("**/dashboard/tasks?*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("h1")).to_have_text("Tasks")


def test_when_the_server_is_unreachable_the_page_keeps_its_content_and_shows_a_notice(page: Page, tmp_path: Path):
    with served(SqliteEngine(tmp_path / "qo.db")) as api:
        page.goto(f"{api.url}/ui/")
        expect(page.locator("h1")).to_have_text("Overview")
    expect(page.locator(".live")).to_have_text("Reconnecting")
    expect(page.locator(".banner")).to_contain_text("This page may be out of date: The server cannot be reached.")
    expect(page.locator("h1")).to_have_text("Overview")
    picture(page, "away")


def test_views_that_were_never_opened_can_be_opened_while_the_server_is_away(page: Page, tmp_path: Path):
    with served(SqliteEngine(tmp_path / "qo.db")) as api:
        page.goto(f"{api.url}/ui/")
        expect(page.locator("h1")).to_have_text("Overview")
    page.evaluate("location.hash = '#/workers'")
    expect(page.locator("[data-state=error]")).to_contain_text("The server cannot be reached.")


def test_every_view_is_preloaded():
    preloaded = set(re.findall('modulepreload" href="([^"]+)"', (FILES / "index.html").read_text()))
    modules = {path.relative_to(FILES).as_posix() for path in FILES.glob("[pv]*/*.js")}
    assert modules <= preloaded
    assert all((FILES / name).exists() for name in preloaded)


def test_a_view_that_could_not_be_loaded_is_loaded_again(page: Page, nothing: Served):
    page.route("**/views/workers.js", lambda route: route.abort())
    page.goto(f"{nothing.url}/ui/")
    expect(page.locator("h1")).to_have_text("Overview")
    page.evaluate("location.hash = '#/workers'")
    expect(page.locator("[data-state=error]")).to_contain_text("This view could not be loaded.")
    page.unroute("**/views/workers.js")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("h1")).to_have_text("Workers")


def test_a_server_that_does_not_respond_is_reported_until_it_does(page: Page, nothing: Served):
    page.clock.install()
    page.goto(f"{nothing.url}/ui/")
    expect(page.locator("h1")).to_have_text("Overview")
    held: list[Route] = []
    page.route("**/dashboard/overview", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks the function
    page.clock.run_for(6_000)
    (route, *_) = wait_until(lambda: page.evaluate("true") and held)
    expect(page.locator(".banner")).to_be_hidden()
    page.clock.run_for(10_000)
    expect(page.locator(".banner")).to_contain_text("There has been no response for 10 seconds")
    picture(page, "stalled")
    route.continue_()
    expect(page.locator(".banner")).to_be_hidden()


def test_a_silent_stream_of_events_is_replaced(page: Page, nothing: Served):
    page.clock.install()
    page.goto(f"{nothing.url}/ui/")
    expect(page.locator(".live")).to_have_text("Live")
    with page.expect_request("**/events"):
        page.clock.run_for(45_000)  # of the page; of the server, less than its interval of 15 seconds
    expect(page.locator(".live")).to_have_text("Live")


def test_a_hidden_page_asks_for_nothing(seen: Seen):
    page = seen.page
    page.clock.install()
    seen.go()
    expect(page.locator(".live")).to_have_text("Live")
    page.evaluate(HIDE, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(120_000)
    assert asked == []
    page.evaluate(HIDE, False)
    with page.expect_request("**/dashboard/overview"):
        page.clock.run_for(2_000)
    expect(page.locator(".live")).to_have_text("Live")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("device", WIDTHS)
def test_every_view_fits_and_can_be_read(
    browser: Browser, queue: Place, theme: Literal["light", "dark"], device: str, failed_task: str
):
    """Nothing hangs over the edge, everything has a name, text stands out from its ground (WCAG AA)."""
    context = browser.new_context(viewport={"width": WIDTHS[device], "height": 900}, color_scheme=theme)
    page = context.new_page()
    there = Seen(page, queue)
    for name, where in {
        "Overview": "#/",
        "Tasks": "#/tasks?queue=shown",
        "explode": f"#/tasks/{failed_task}",
        "Workers": "#/workers",
        "Batches": "#/batches",
        "shown-1": "#/batches/shown-1",
        "Schedules": "#/schedules",
    }.items():
        there.go(where)
        expect(page.locator("h1")).to_contain_text(name)
        there.picture(f"{name.lower()}-{device}-{theme}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide for {device}"
        problems = json.loads(page.evaluate(CONTRAST))
        assert problems == [], f"{name}, {theme}: {problems}"
    context.close()


@pytest.fixture(scope="session")
def failed_task(queue: Place) -> str:
    task = queue.submit("explode", {"reason": "shown"}, queue="shown", max_retries=0, batch="shown-1")
    queue.until(task, "failed")
    return task


def test_light_and_dark_are_switched_by_hand(seen: Seen):
    seen.page.emulate_media(color_scheme="light")
    seen.go()
    background = "getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(background)
    seen.page.get_by_role("button", name="Light or dark").click()
    assert seen.page.evaluate(background) != light
    seen.page.get_by_role("button", name="Light or dark").click()
    assert seen.page.evaluate(background) == light


def test_the_bar_of_a_narrow_window_separates_its_labels(page: Page, empty_queue: Place):
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto(f"{empty_queue.url}/ui/")
    expect(page.locator("h1")).to_have_text("Overview")
    boxes = page.locator(".top nav a:visible span").evaluate_all(
        "spans => spans.map(span => span.getBoundingClientRect()).map(({left, right}) => [left, right])"
    )
    picture(page, "narrow-bar")
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(boxes)]
    assert len(boxes) == 8 and min(gaps) >= 2, gaps
    assert boxes[0][0] >= 0 and boxes[-1][1] <= 380


def test_the_title_shows_the_end_of_the_url_of_the_store(page: Page, empty_queue: Place):
    page.goto(f"{empty_queue.url}/ui/")
    title = page.locator(".where")
    expect(title).to_contain_text("qo.db")
    picture(page, "title")
    assert title.evaluate("each => each.scrollWidth <= each.clientWidth")
    assert title.get_attribute("title") == empty_queue.store
