"""A real Chromium, headless. A missing one skips at a desk and fails in CI."""

import contextlib
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

from tests.servers.process import find, missing

ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    program = find("chromium", "QO_TEST_CHROMIUM") or find("chromium-browser", "QO_TEST_CHROMIUM")
    if program is None:
        missing("Chromium", "apt-get install chromium, or name it in QO_TEST_CHROMIUM")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield made
        finally:
            made.close()
