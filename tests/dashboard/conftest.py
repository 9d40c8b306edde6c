"""One server and one worker for the session, one browser for each file; each test has tasks of its own types.

Playwright keeps an event loop running in the thread that started it, in which no other can be started: a browser must
be gone before the next file's tests, which may be asynchronous, begin.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.dashboard.chromium import chromium, modules, tab
from tests.dashboard.place import PATIENCE, Place, place
from tests.dashboard.seen import Seen
from tests.dashboard.zero_store import _keys, store
from tests.servers.browser import browser as real_browser

__all__ = ["_keys", "chromium", "modules", "store", "tab"]  # of the tests without a server, started once


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with real_browser() as made:
        yield made


@pytest.fixture(scope="session")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """With a worker that has handlers for everything in `handlers`."""
    with place(tmp_path_factory.mktemp("dashboard"), "--title", "the test queue") as made, made.worker("worker-a"):
        yield made


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh window: whatever it says wrong on its console fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["clipboard-write"])
    context.set_default_timeout(PATIENCE * 1000)
    made = context.new_page()
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield made
    context.close()
    assert [each for each in wrong if "Failed to load resource" not in each] == []


@pytest.fixture
def seen(page: Page, queue: Place) -> Seen:
    return Seen(page, queue)


@pytest.fixture
def empty_queue(tmp_path: Path) -> Iterator[Place]:
    """Without tasks and workers."""
    with place(tmp_path) as made:
        yield made
