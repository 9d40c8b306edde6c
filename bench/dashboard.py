"""How soon is the dashboard useful? `python -m bench.dashboard [TASKS]`: 100,000 tasks on SQLite, a real `qo serve`, a real Chromium.

First useful paint: from asking for the page in a fresh window (nothing cached) until figures or rows stand on the screen.
A filter change: from the click until the rows it asked for stand there. The goal is a second each. Medians of REPS runs,
with the slowest.
"""

import asyncio
import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from playwright.sync_api import Browser, Page, sync_playwright

from qo.client import connect
from qo.ids import new_id
from qo.model import NewTask, complete, fail

TASKS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 100_000
REPS = 7
GOAL = 1.0  # seconds
PORT = 8798
ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TYPES = ["send_email", "resize_image", "make_report", "crawl_page", "charge_card"]
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


async def fill(url: str) -> None:
    """Half of them waiting, the rest completed, one in twenty failed."""
    chance = random.Random(7)
    async with connect(url) as client:
        made = [
            NewTask(
                id=new_id(),
                queue=chance.choice(["default", "mail", "slow"]),
                type=chance.choice(TYPES),
                payload=b'{"to": "user%d@example.com"}' % number,
                priority=chance.choice([0, 3, 6, 9]),
            )
            for number in range(TASKS)
        ]
        await client.submit_many(made)
        done = 0
        while done < TASKS // 2 and (tasks := await client.dequeue(batch_size=1000)):
            await client.engine.apply(
                [
                    complete(task, b'{"ok": true}') if number % 20 else fail(task, "ValueError: no such user")
                    for number, task in enumerate(tasks)
                ]
            )
            done += len(tasks)


def opened(browser: Browser, where: str, until: str) -> float:
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        began = time.perf_counter()
        page.goto(f"http://127.0.0.1:{PORT}/ui/{where}", wait_until="commit")
        page.locator(until).first.wait_for()
        page.evaluate(DRAWN)
        return time.perf_counter() - began


def changed(browser: Browser, how, until: str) -> float:
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{PORT}/ui/#/tasks")
        page.locator("tr[data-id]").first.wait_for()
        page.locator(".chip").first.wait_for()
        began = time.perf_counter()
        how(page)
        page.wait_for_function(until)
        page.evaluate(DRAWN)
        return time.perf_counter() - began


def all_rows(test: str) -> str:
    return f"() => {{ const rows = [...document.querySelectorAll('tr[data-id]')]; return rows.length > 0 && rows.every(row => {test}); }}"


def chip(page: Page) -> None:
    page.locator('.chip[data-status="failed"]').click()


def by_type(page: Page) -> None:
    page.get_by_label("Type", exact=True).select_option("crawl_page")


def search(page: Page) -> None:
    page.get_by_label("Search").fill("user999")
    page.keyboard.press("Enter")


def deeper(page: Page) -> None:
    page.get_by_role("button", name="Next").click()


MEASURES = {
    "first useful paint: overview": lambda browser: opened(browser, "#/", ".stat b"),
    "first useful paint: tasks": lambda browser: opened(browser, "#/tasks", "tr[data-id]"),
    "first useful paint: tasks, failed": lambda browser: opened(browser, "#/tasks?status=failed", "tr[data-id]"),
    "filter change: status": lambda browser: changed(browser, chip, all_rows("row.innerText.includes('failed')")),
    "filter change: type": lambda browser: changed(browser, by_type, all_rows("row.innerText.includes('crawl_page')")),
    "filter change: text": lambda browser: changed(
        browser, search, "() => document.querySelector('.summary').innerText.includes('looked through')"
    ),
    "next page": lambda browser: changed(
        browser, deeper, "() => location.hash.includes('after=') && !document.querySelector('.pages button').disabled"
    ),
}


@contextlib.contextmanager
def serving(url: str):
    command = [
        sys.executable,
        "-m",
        "qo",
        "serve",
        "--url",
        url,
        "--port",
        str(PORT),
        "--log-level",
        "error",
        "--no-monitor",
    ]
    server = subprocess.Popen(command)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=1):
                break
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/qo.db"
        asyncio.run(fill(url))
        with serving(url), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGS)
            print(
                f"{TASKS:,} tasks on SQLite; {REPS} runs each; goal {GOAL:g} s\n\n| what | median | slowest | |\n|---|--:|--:|---|"
            )
            for name, measure in MEASURES.items():
                took = sorted(measure(browser) for _ in range(REPS))
                verdict = "ok" if statistics.median(took) < GOAL else "too slow"
                print(f"| {name} | {statistics.median(took):.2f} s | {took[-1]:.2f} s | {verdict} |", flush=True)
            browser.close()


if __name__ == "__main__":
    main()
