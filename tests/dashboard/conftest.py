"""One server, one worker and one browser for the session; each test has tasks of its own types.

Playwright keeps an event loop running in the thread that started it, in which no other can be started: the browser must
be gone before a test that may be asynchronous begins.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.dashboard.chromium import chromium, modules, tab
from tests.dashboard.place import TIMEOUT, Place
from tests.dashboard.place import place as serving_place
from tests.dashboard.seen import Seen
from tests.dashboard.zero_queue import client, place, source
from tests.dashboard.zero_store import _keys, store
from tests.servers.browser import browser as real_browser

# Of the tests without a server; the servers and the browser are started once.
__all__ = ["_keys", "chromium", "client", "modules", "place", "source", "store", "tab"]
HERE = Path(__file__).parent
_ASYNCHRONOUS = re.compile("test_(zero_server|bucket_roles)")


class _OpenBrowser:
    """The browser of this process: started for the first test that uses it, ended before an asynchronous test."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._browser: Browser | None = None
        self.is_needed = False  # by the next test

    def get(self) -> Browser:
        if self._browser is None:
            self._browser = self._stack.enter_context(real_browser())
        return self._browser

    def close(self) -> None:
        self._browser = None
        self._stack.close()


_open = _OpenBrowser()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    is_sync = nextitem is not None and nextitem.path.parent == HERE and not _ASYNCHRONOUS.match(nextitem.path.name)
    _open.is_needed = is_sync


@pytest.fixture(autouse=True)
def _end_of_browser() -> Iterator[None]:
    """After the page of the last test, and before fixtures of the session, which may be asynchronous."""
    yield
    if not _open.is_needed:
        _open.close()


@pytest.fixture
def browser() -> Browser:
    return _open.get()


@pytest.fixture(scope="session")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """With a worker that has handlers for everything in `handlers`."""
    folder = tmp_path_factory.mktemp("dashboard")
    with serving_place(folder, "--title", "the test queue") as made, made.worker("worker-a"):
        yield made


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh window: whatever it says wrong on its console fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["clipboard-write"])
    context.set_default_timeout(TIMEOUT * 1000)
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
    with serving_place(tmp_path) as made:
        yield made
