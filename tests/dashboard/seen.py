"""What a person does with the pages, and sees on them."""

import os

from playwright.sync_api import Locator, Page, expect

from tests.dashboard.place import TIMEOUT, Place
from tests.servers.process import ROOT

PICTURES = ROOT / "build" / "dashboard"

expect.set_options(timeout=TIMEOUT * 1000)


class Seen:
    def __init__(self, page: Page, queue: Place) -> None:
        self.page, self.queue = page, queue

    def go(self, where: str = "#/") -> None:
        """To a view; whatever it shows first is there when this returns."""
        self.page.goto(f"{self.queue.url}/ui/{where}")
        self.page.locator("main > *").first.wait_for()

    def row(self, task_id: str) -> Locator:
        return self.page.locator(f'tr[data-id="{task_id}"]')

    def dialog(self, button: str) -> None:
        """Answer the question that is asked."""
        self.page.locator("dialog[open]").get_by_role("button", name=button, exact=True).click()

    def told(self, text: str) -> None:
        expect(self.page.locator(".toast", has_text=text).first).to_be_visible()

    def picture(self, name: str) -> None:
        picture(self.page, name)


def picture(page: Page, name: str) -> None:
    """Keep what the window shows under build/, if QO_TEST_PICTURES is set: each takes half a second to draw."""
    if os.environ.get("QO_TEST_PICTURES"):
        page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")
