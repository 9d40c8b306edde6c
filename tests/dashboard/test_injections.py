"""Text never becomes markup: scripts in every field a stranger can fill, and none of them runs.

Names are checked when tasks are submitted; here they are written past the checks, as a bad program with its hands on the
store could.
"""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from playwright.sync_api import Page, expect

from qo import notes
from qo.clock import system_clock
from qo.engines.sqlite import SqliteEngine
from qo.model import ANY, NewTask, Want, complete, fail
from tests.dashboard.place import Place, place
from tests.dashboard.seen import Seen

HIT = "top.hits=(top.hits||0)+1"
SCRIPTS = [
    f"<script>{HIT}</script>",
    f"<img src=x onerror='{HIT}'>",
    f"<svg onload='{HIT}'>",
    f"<svg><script>{HIT}</script></svg>",
    f'"><script>{HIT}</script>',
    f"'><img src=x onerror={HIT}>",
    f"</title><script>{HIT}</script>",
    f"</textarea><img src=x onerror={HIT}>",
    f"<iframe srcdoc='<script>{HIT}</script>'></iframe>",
    f"<iframe src='javascript:{HIT}'></iframe>",
    f"<a href='javascript:{HIT}'>click</a>",
    f"javascript:{HIT}",
    f"<details open ontoggle='{HIT}'>",
    f"<body onload='{HIT}'>",
    f"<input autofocus onfocus='{HIT}'>",
    f"<math><mi xlink:href='javascript:{HIT}'>x</mi></math>",
    f"<style>*{{background:url(javascript:{HIT})}}</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<script src=//evil.example/x.js></script>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example/'>",
    f"<form action=javascript:{HIT}><button>go</button></form>",
    f"{{{{constructor.constructor('{HIT}')()}}}}",
    f"${{{HIT}}}",
    f"`;{HIT}//",
    "&lt;script&gt;\u2028\u202e<b>bold</b>",
]
HARMLESS = """() => JSON.stringify({
  hits: window.hits ?? 0, local: localStorage.length, session: sessionStorage.length, cookie: document.cookie,
  strangers: [...document.querySelectorAll('script:not([src]), img, iframe, style, base, form[action], [onerror], [onload], object, embed')].map(e => e.outerHTML),
})"""
CLEAN: dict[str, Any] = {"hits": 0, "local": 0, "session": 0, "cookie": "", "strangers": []}


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, list[str]]]:
    folder: Path = tmp_path_factory.mktemp("evil")
    with ThreadPoolExecutor(1) as beside:  # this thread may have the browser's loop running
        ids = beside.submit(asyncio.run, fill(folder / "qo.db")).result()
    with place(folder, "--title", SCRIPTS[0], "--no-monitor") as made:
        yield made, ids


async def fill(path: Path) -> list[str]:
    """A task for each script, with the script in every field; in three statuses; and workers and switches full of them."""
    engine = SqliteEngine(path)
    await engine.open()
    try:
        ids = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(len(SCRIPTS))]
        tasks = [
            NewTask(
                id=task_id,
                queue=script,
                type=script,
                payload=json.dumps({script: script, "list": [script, {script: [script]}]}).encode(),
                needs=(script,),
                idempotency_key=script,
                trace_id=script,
            )
            for task_id, script in zip(ids, SCRIPTS, strict=True)
        ]
        await engine.add(tasks)
        for number, script in enumerate(SCRIPTS):
            want = Want(worker_id=script, lease_id=f"{number:032x}", types=(script,), capabilities=frozenset(SCRIPTS))
            for task in await engine.claim(want):
                result = json.dumps({script: [script]}).encode()
                trace = f"{script}\nTraceback (most recent call last):\n  {script}"
                if number % 3 < 2:
                    await engine.apply([complete(task, result) if number % 3 else fail(task, trace)])
            note = notes.WorkerNote(
                worker_id=script,
                started_at=0.0,
                last_heartbeat=system_clock(),
                queues=(script,),
                types=(script,),
                capabilities=(script,),
                capacity=1,
                current_load=1,
                current_tasks=(script, ids[number]),
                host=script,
                version=script,
            )
            name = f"{notes.WORKERS}{number}"
            await engine.write_note(name, msgspec.json.encode(note), expected=ANY)
        control = notes.Control(
            paused_queues=frozenset(SCRIPTS), paused_types=frozenset(SCRIPTS), rate_limits=dict.fromkeys(SCRIPTS, 1.0)
        )
        await engine.write_note(notes.CONTROL, msgspec.json.encode(control), expected=ANY)
    finally:
        await engine.close()
    return ids


def test_no_script_in_any_field_runs(page: Page, evil: tuple[Place, list[str]]):
    queue, ids = evil
    strangers: list[str] = []
    page.on("dialog", lambda dialog: strangers.append(dialog.message) or dialog.dismiss())
    page.on("request", lambda request: request.url.startswith(queue.url) or strangers.append(request.url))
    seen = Seen(page, queue)
    addresses = ["#/", "#/tasks", "#/workers", *(f"#/tasks/{task_id}" for task_id in ids)]
    for where in addresses:
        seen.go(where)
        expect(page.locator("h1")).to_be_visible()
        assert json.loads(page.evaluate(HARMLESS)) == CLEAN, where
    expect(page.locator(".where")).to_have_text(SCRIPTS[0])
    seen.go(f"#/tasks/{ids[0]}")
    expect(page.locator("h1")).to_contain_text(SCRIPTS[0])  # shown, as what it is: text
    for section in ("payload", "error"):
        expect(page.locator(f'[data-section="{section}"]')).to_contain_text(SCRIPTS[0])
    expect(page.locator(".diff")).to_contain_text(SCRIPTS[0])
    seen.picture("injections-task")
    fields = [
        "title",
        "type",
        "queue",
        "payload key",
        "payload value",
        "needs",
        "idempotency key",
        "trace id",
        "worker",
    ]
    assert len(SCRIPTS) * len(fields) > 200
    assert strangers == [] and queue.reports() == 0


def test_no_script_in_the_address_or_a_refusal_runs(page: Page, evil: tuple[Place, list[str]]):
    queue, _ = evil
    strangers: list[str] = []
    page.on("dialog", lambda dialog: strangers.append(dialog.message) or dialog.dismiss())
    page.on("request", lambda request: request.url.startswith(queue.url) or strangers.append(request.url))
    page.goto(f"{queue.url}/ui/")
    for script in SCRIPTS:
        text = quote(script, safe="")
        for where in (
            f"#/tasks?type={text}&queue={text}&worker={text}&text={text}&shard={text}&sort={text}&after={text}",
            f"#/tasks?text={text}",
            f"#/tasks/{text}",
            f"#/workers?show={text}",
            f"#/{text}",
        ):
            page.evaluate("where => { location.hash = where; }", where)
            page.locator("[data-state], h1, .state").first.wait_for()
            assert json.loads(page.evaluate(HARMLESS)) == CLEAN, where
    assert strangers == [] and queue.reports() == 0


def test_the_alarm_works(browser: Any, evil: tuple[Place, list[str]]):
    """What the tests above watch for is seen when it happens: a foreign script is stopped by the browser, and counted."""
    queue, _ = evil
    before = queue.reports()
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{queue.url}/ui/")
        with page.expect_request("**/ui/reports"):
            page.evaluate(
                "() => { document.body.append(Object.assign(document.createElement('script'), {textContent: 'hits = 1'})); }"
            )
        strangers = json.loads(page.evaluate(HARMLESS))
        assert strangers["hits"] == 0 and len(strangers["strangers"]) == 1
        page.wait_for_function("() => true")
    looks = (queue.reports() for _ in range(100))
    assert any(look == before + 1 for look in looks)
