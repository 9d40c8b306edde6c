"""The clock of the browser is wrong: ages, countdowns and kinds of pending tasks come from the server's clock."""

import re

import pytest
from playwright.sync_api import expect

from qo.clock import iso, system_clock
from tests.dashboard.seen import Seen

WRONG = "const right = Date.now; Date.now = () => right() + {error} * 1000;"


@pytest.mark.parametrize("error", [3600, -3600], ids=["fast", "slow"])
def test_ages_and_countdowns_do_not_depend_on_the_clock_of_the_browser(seen: Seen, error: int):
    held = seen.queue.file(f"held{error}")
    running = seen.queue.submit("hold", {"file": str(held)})
    seen.queue.until(running, "running")
    type_ = f"later{error}"
    later = seen.queue.submit(type_, {}, run_at=iso(system_clock() + 1800))
    page = seen.page
    page.add_init_script(WRONG.format(error=error))
    seen.go(f"#/tasks?type={type_}")
    expect(seen.row(later)).to_contain_text(re.compile(r"due\s+in (29|30) min"))
    expect(seen.row(later).locator("[data-kind]")).to_have_text("scheduled")
    seen.go(f"#/tasks/{running}")
    expect(page.locator("[data-lease]")).to_contain_text(re.compile(r"expires in \d+ s"))
    expect(page.locator(".timeline")).to_contain_text(re.compile(r"running for (\d s|[1-5]\d s)"))
    held.unlink()
