"""Text never becomes markup: scripts in every field a stranger can fill, and none of them runs.

Names are checked when tasks are submitted; here they are written past the checks.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Dialog, Page, Request, expect

from tests.dashboard.evil import SCRIPTS, WORKFLOW, fill
from tests.dashboard.place import Place, place
from tests.dashboard.seen import Seen

HARMLESS = """() => JSON.stringify({
  hits: window.hits ?? 0, local: localStorage.length, session: sessionStorage.length, cookie: document.cookie,
  strangers: [...document.querySelectorAll(
    'script:not([src]), img, iframe, style, base, form[action], [onerror], [onload], object, embed',
  )].map(element => element.outerHTML),
})"""
INJECT = """() => {
  const script = document.createElement('script');
  script.append('hits = 1'); // to set its text is refused at once: see MAKE_MARKUP
  document.body.append(script);
}"""
MAKE_MARKUP = """() => ['innerHTML', 'outerHTML', 'text', 'srcdoc', 'parser'].map((way) => {
  try {
    const element = document.createElement({text: 'script', srcdoc: 'iframe'}[way] ?? 'p');
    document.body.append(element);
    if (way === 'parser') new DOMParser().parseFromString('<b>', 'text/html');
    else element[way] = '<img src=x onerror="hits = 1">';
    return 'made';
  } catch (error) {
    return error.name;
  } finally {
    document.body.lastChild.remove();
  }
})"""
CLEAN: dict[str, Any] = {"hits": 0, "local": 0, "session": 0, "cookie": "", "strangers": []}


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, list[str]]]:
    folder: Path = tmp_path_factory.mktemp("evil")
    with ThreadPoolExecutor(1) as beside:  # this thread may have the browser's loop running
        ids = beside.submit(asyncio.run, fill(folder / "qo.db")).result()
    with place(folder, "--title", SCRIPTS[0], "--no-monitor") as made:
        yield made, ids


def watched(page: Page, queue: Place) -> list[str]:
    """Whatever a script could do that is seen from outside: a dialog, a request to someone else."""
    strangers: list[str] = []

    def on_dialog(dialog: Dialog) -> None:
        strangers.append(dialog.message)
        dialog.dismiss()

    def on_request(request: Request) -> None:
        if not request.url.startswith(queue.url):
            strangers.append(request.url)

    page.on("dialog", on_dialog)
    page.on("request", on_request)
    return strangers


def test_no_script_in_any_field_runs(page: Page, evil: tuple[Place, list[str]]):
    queue, ids = evil
    strangers = watched(page, queue)
    seen = Seen(page, queue)
    titles = {"#/": "Overview", "#/tasks": "Tasks", "#/workers": "Workers", "#/schedules": "Schedules"}
    titles |= {"#/batches": "Batches", "#/workflows": "Workflows"}
    titles[f"#/workflows/{quote(WORKFLOW.id, safe='')}"] = WORKFLOW.name
    shown = [script.replace("\u202e", "\\u202e") for script in SCRIPTS]  # a direction override is shown as an escape
    titles |= {f"#/tasks/{task_id}": text for task_id, text in zip(ids, shown, strict=True)}
    for where in titles:
        seen.go(where)
        expect(page.locator("h1")).to_contain_text(titles[where])
        assert json.loads(page.evaluate(HARMLESS)) == CLEAN, where
    expect(page.locator(".where")).to_have_text(SCRIPTS[0])
    seen.go(f"#/workflows/{quote(WORKFLOW.id, safe='')}")
    expect(page.locator(".flow .node")).to_have_count(len(SCRIPTS))
    assert json.loads(page.evaluate(HARMLESS)) == CLEAN
    seen.go(f"#/tasks/{ids[0]}")
    expect(page.locator("h1")).to_contain_text(SCRIPTS[0])  # shown, as what it is: text
    for section in ("payload", "error"):
        expect(page.locator(f'[data-section="{section}"]')).to_contain_text(SCRIPTS[0])
    expect(page.locator(".diff")).to_contain_text(SCRIPTS[0])
    seen.picture("injections-task")
    fields = ("title", "type", "queue", "key", "value", "needs", "idempotency key", "trace id", "worker", "error")
    assert len(SCRIPTS) * len(fields) > 200
    assert strangers == [] and queue.reports() == 0


def test_no_script_in_the_address_or_a_refusal_runs(page: Page, evil: tuple[Place, list[str]]):
    queue, _ = evil
    strangers = watched(page, queue)
    page.goto(f"{queue.url}/ui/")
    for number, script in enumerate(["".join(SCRIPTS), *SCRIPTS]):
        text = quote(script, safe="")
        places = (
            f"#/tasks?type={text}&queue={text}&worker={text}&text={text}&shard={text}&sort={text}&after={text}",
            f"#/tasks?text={text}",
            f"#/tasks/{text}",
            f"#/workers?show={text}",
            f"#/{text}",
        )
        is_everywhere = number == 0 or "QO_TORTURE" in os.environ  # all together, and each in one place
        for where in places if is_everywhere else (places[number % len(places)],):
            page.evaluate("where => { location.hash = where; }", where)
            page.locator("[data-state], h1, .state").first.wait_for()
            assert json.loads(page.evaluate(HARMLESS)) == CLEAN, where
    assert strangers == [] and queue.reports() == 0


def test_the_alarm_works(browser: Any, evil: tuple[Place, list[str]]):
    """What the tests above watch for is seen when it happens: the browser stops a foreign script, and it is counted."""
    queue, _ = evil
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{queue.url}/ui/")
        before = queue.reports()  # counted from the first page on
        with page.expect_request("**/ui/reports"):
            page.evaluate(INJECT)
        strangers = json.loads(page.evaluate(HARMLESS))
        assert strangers["hits"] == 0 and len(strangers["strangers"]) == 1
    looks = (queue.reports() for _ in range(100))
    assert any(look > before for look in looks)


def test_the_browser_refuses_to_make_markup_of_text(browser: Any, evil: tuple[Place, list[str]]):
    """Trusted Types: even a mistake in the page's own scripts cannot put a stranger's text into it as markup."""
    queue, _ = evil
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{queue.url}/ui/")
        expect(page.locator("h1")).to_contain_text("Overview")
        assert page.evaluate(MAKE_MARKUP) == ["TypeError"] * 5
        assert json.loads(page.evaluate(HARMLESS)) == CLEAN
