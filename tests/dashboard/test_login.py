"""In a browser: logging in at a real provider, acting, the audit page, logging out; and what strangers are told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from qo.engines.sqlite import SqliteEngine
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.oidc.settings import OidcSettings
from tests.dashboard.seen import picture
from tests.servers.oidc import LoginPlace
from tests.web.serving import Served, served


@pytest.fixture(scope="module")
def guarded(oidc_provider: LoginPlace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    oidc_provider.make_user("kim@example.com", groups=["admins"])
    oidc_provider.make_user("joe@example.com", groups=["visitors"])
    oidc_provider.make_user("<img src=x>", groups=["admins"])
    settings = OidcSettings(
        issuer=oidc_provider.issuer, client_id="qo", client_secret="s", roles={"admins": frozenset({Scope.ADMIN})}
    )
    path: Path = tmp_path_factory.mktemp("login") / "qo.db"
    with served(SqliteEngine(path), WebSettings(oidc=settings, token_required=True, title="guarded")) as api:
        api.run(api.qo_client.enqueue("t", {"a": 1}, max_retries=0))
        api.break_down("no")
        yield api


def log_in(page: Page, name: str) -> None:
    page.locator("[data-do=login]").click()
    page.locator("input[name=sub]").fill(name)
    page.get_by_role("button", name="Authorize").click()


def test_a_person_logs_in_acts_and_logs_out(page: Page, guarded: Served):
    page.goto(f"{guarded.url}/ui/#/tasks?status=failed")
    expect(page.locator(".token")).to_contain_text("Log in to this queue")
    picture(page, "login")
    log_in(page, "kim@example.com")
    expect(page.locator("h1")).to_have_text("Tasks")
    assert page.url == f"{guarded.url}/ui/#/tasks?status=failed"
    expect(page.locator(".user")).to_have_text("kim@example.com")
    expect(page.locator(".live")).to_have_text("Live")
    assert page.evaluate("document.cookie") == ""  # no script sees the session
    page.get_by_role("button", name="Replay").first.click()
    expect(page.locator(".toasts")).to_contain_text("1 task replayed")

    page.get_by_role("link", name="Audit").click()
    rows = page.locator("table.audit tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("replay")
    expect(rows.first).to_contain_text("kim@example.com")
    picture(page, "audit")
    page.get_by_label("Action").select_option("login")
    expect(rows).to_have_count(1)
    page.get_by_label("Action").select_option("delete")
    expect(page.locator("main")).to_contain_text("No actions")

    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/oauth2/end_session**")
    page.goto(f"{guarded.url}/ui/")
    expect(page.locator(".token")).to_be_visible()


def test_a_user_without_a_role_sees_the_reason(page: Page, guarded: Served):
    page.goto(f"{guarded.url}/ui/")
    log_in(page, "joe@example.com")
    expect(page.locator("[data-problem=no_role]")).to_contain_text("You have no role here")
    picture(page, "login-refused")
    page.goto(f"{guarded.url}/ui/#/login?problem=%3Cb%3Ex")
    page.reload()
    expect(page.locator("[role=alert] h2")).to_have_text("You are logged out")


def test_a_name_of_the_provider_is_text(page: Page, guarded: Served):
    page.goto(f"{guarded.url}/ui/#/audit")
    log_in(page, "<img src=x>")
    expect(page.locator(".user")).to_have_text("<img src=x>")
    expect(page.locator("table.audit tbody tr").first).to_contain_text("<img src=x>")
    assert page.locator("main img").count() == 0
