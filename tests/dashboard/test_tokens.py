"""With tokens, the page asks for one, keeps it in memory only, and offers what it allows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from qo.engines.sqlite import SqliteEngine
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token, revoke_token
from tests.conditions import wait_until
from tests.dashboard.seen import picture
from tests.web.serving import Served, served

KEPT = """async () => JSON.stringify({
  local: {...localStorage}, session: {...sessionStorage}, cookie: document.cookie, address: location.href,
  databases: (await indexedDB.databases()).length, markup: document.documentElement.outerHTML,
})"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("guarded") / "qo.db"
    with served(SqliteEngine(path), WebSettings(token_required=True, title="guarded")) as api:
        api.run(api.qo_client.enqueue("t", {"a": 1}, max_retries=0))
        api.break_down("no")
        yield api


def secret(api: Served, scope: str, **limits: Any) -> str:
    made = create_token(api.qo_client.engine, f"{scope}-{len(limits)}-{id(limits)}", [Scope(scope)], now=0.0, **limits)
    return api.run(made).secret


def enter(page: Page, token: str) -> None:
    """Again if need be: a server knows a token within a second after it was made."""
    page.get_by_label("Token").fill(token)
    while page.locator("form.token").count():
        page.get_by_role("button", name="Open").click()
        page.locator("form.token button:not(:disabled), h1").first.wait_for()


def test_the_page_asks_for_a_token_and_stores_it_nowhere(page: Page, guarded: Served):
    page.goto(f"{guarded.url}/")
    expect(page.locator(".token")).to_contain_text("This queue needs a token")
    picture(page, "token")
    page.get_by_label("Token").fill("qo_" + "0" * 64)
    page.get_by_role("button", name="Open").click()
    expect(page.locator(".token [role=alert]")).to_contain_text("unknown or expired")
    token = secret(guarded, "admin")
    enter(page, token)
    expect(page.locator("h1")).to_have_text("Overview")
    expect(page.locator(".where")).to_have_text("guarded")
    expect(page.locator(".live")).to_have_text("Live")
    kept = page.evaluate(KEPT)
    assert token not in kept and '"local":{},"session":{},"cookie":""' in kept and '"databases":0' in kept
    page.reload()
    expect(page.locator(".token")).to_be_visible()


def test_the_form_for_a_token_stays_while_the_server_is_slow_or_unreachable(page: Page, guarded: Served):
    page.clock.install()
    page.goto(f"{guarded.url}/ui/#/tasks")
    page.get_by_label("Token").fill("half of a token")
    held: list[Route] = []
    page.route("**/dashboard/tasks?*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks the function
    page.clock.run_for(6_000)
    (route, *_) = wait_until(lambda: page.evaluate("true") and held)
    page.clock.run_for(1_000)
    expect(page.get_by_label("Token")).to_have_value("half of a token")
    with page.expect_event("requestfailed"):
        route.abort()
    page.unroute("**/dashboard/tasks?*")
    with page.expect_response("**/dashboard/tasks?*"):
        page.clock.run_for(6_000)
    expect(page.get_by_label("Token")).to_have_value("half of a token")
    enter(page, secret(guarded, "admin"))
    expect(page.locator("h1")).to_have_text("Tasks")


def test_the_page_asks_again_for_each_token_that_ends_while_it_is_open(page: Page, guarded: Served):
    page.goto(f"{guarded.url}/ui/#/tasks")
    for scope in ("read", "operate"):
        made = create_token(guarded.qo_client.engine, f"ends-{scope}", [Scope(scope)], now=0.0)
        enter(page, guarded.run(made).secret)
        expect(page.locator("h1")).to_have_text("Tasks")
        guarded.run(revoke_token(guarded.qo_client.engine, f"ends-{scope}"))
        expect(page.locator(".token")).to_contain_text("This queue needs a token")
        page.evaluate("location.hash = '#/workers'")  # a view that is not loaded yet
        page.evaluate("location.hash = '#/tasks'")


def test_a_reader_may_only_look(page: Page, guarded: Served):
    token = secret(guarded, "read")
    page.goto(f"{guarded.url}/ui/#/tasks")
    enter(page, token)
    expect(page.locator("tr[data-id]")).to_have_count(1)
    expect(page.locator(".mode")).to_have_text("read-only")
    expect(page.locator("tr[data-id] button")).to_have_count(0)
    expect(page.locator("input[type=checkbox]:visible")).to_have_count(0)
    page.goto(f"{guarded.url}/ui/#/")
    expect(page.locator("h1")).to_have_text("Overview")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    page.goto(f"{guarded.url}/ui/#/tasks/{guarded.run(guarded.qo_client.list())[0].id}")
    expect(page.locator("h1")).to_contain_text("t")
    expect(page.get_by_role("button", name="Replay")).to_have_count(0)
    page.keyboard.press("r")
    expect(page.locator(".toast")).to_have_count(0)


def test_an_operator_of_one_queue_is_offered_what_it_may_do(page: Page, guarded: Served):
    guarded.run(guarded.qo_client.enqueue("theirs", queue="elsewhere"))
    page.goto(f"{guarded.url}/ui/#/tasks")
    enter(page, secret(guarded, "operate", queues=["default"]))
    expect(page.locator("tr[data-id]")).to_have_count(1)
    expect(page.locator("tr[data-id] [data-action=replay]")).to_have_count(1)
    expect(page.locator("[data-action=delete]")).to_have_count(0)
    page.evaluate("location.hash = '#/'")
    expect(page.get_by_role("button", name="Pause default")).to_have_count(1)
    expect(page.get_by_role("button", name="Pause t", exact=True)).to_have_count(0)
    expect(page.locator("[data-do=pause], [data-do=limit], [data-do=cleanup]")).to_have_count(0)
