"""A real browser for tests: the system's Chromium, one for all, a fresh page for each test."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Route, async_playwright

import qo
from tests.servers.process import missing

FILES = Path(qo.__file__).parent / "web" / "dashboard"
MODULES = "https://modules.test/"  # a secure place that exists in the browser only: signing needs one
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    program = os.environ.get("QO_TEST_CHROMIUM") or shutil.which("chromium")
    if program is None:
        missing("Chromium", "apt install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        await browser.close()


class Tab:
    """A page, and everything the browser complained about on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._hear)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} {message.location.get('url', '')}")

    def unexpected(self, *statuses: str) -> list[str]:
        """But for answers with these statuses, and 404: what is not there is asked for, and its absence an answer."""
        expected = tuple(f"responded with a status of {status}" for status in ("404", *statuses))
        return [said for said in self.complaints if not any(status in said for status in expected)]


@pytest_asyncio.fixture(loop_scope="session")
async def tab(chromium: Browser) -> AsyncIterator[Tab]:
    context = await chromium.new_context()
    yield Tab(await context.new_page())
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def modules(tab: Tab) -> Page:
    """A blank page from which the dashboard's modules can be imported."""

    async def answer(route: Route) -> None:
        name = route.request.url.removeprefix(MODULES)
        if name == "blank.html":
            await route.fulfill(body="<!doctype html>", content_type="text/html")
        else:
            await route.fulfill(path=FILES / name, content_type="text/javascript")

    await tab.page.route(f"{MODULES}**", answer)
    await tab.page.goto(f"{MODULES}blank.html")
    return tab.page


async def call(page: Page, module: str, expression: str, argument: Any = None) -> Any:
    """What an expression makes of `argument`, with a module's exports as `m`."""
    script = f"async (argument) => {{ const m = await import('./sources/{module}'); return {expression}; }}"
    return await page.evaluate(script, argument)
