"""A browser for each module, one server and one worker for the session; each test has tasks of its own types."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.dashboard.place import PATIENCE, Place, place
from tests.dashboard.seen import Seen
from tests.servers.browser import browser as real_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not longer: while it is open its event loop counts as running, and no asynchronous test could start."""
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
