"""A bucket someone hostile can write to, and links someone hostile made: the page shows text and asks nobody else."""

import json
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from itertools import cycle
from typing import Any

import pytest
from playwright.async_api import Error, Page

from qo.clock import system_clock
from qo.ids import new_id
from tests.dashboard.chromium import Tab
from tests.dashboard.zero_store import Place, Store

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("_keys")]
HIT = "window.hit=1"
VECTORS = [
    f"<script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f"<svg onload={HIT}>",
    f"<svg><script>{HIT}</script></svg>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'></iframe>",
    f"<body onload={HIT}>",
    f"<details open ontoggle={HIT}>",
    f"<input autofocus onfocus={HIT}>",
    f'"><img src=x onerror={HIT}>',
    f"'><svg/onload={HIT}>",
    f"</textarea><script>{HIT}</script>",
    f"</title><script>{HIT}</script>",
    f"<a href=javascript:{HIT}>x</a>",
    f"javascript:{HIT}",
    f"data:text/html,<script>{HIT}</script>",
    f"<style>@import 'javascript:{HIT}';</style>",
    f"<math><mtext></mtext><mglyph><svg><style><img src=x onerror={HIT}>",
    f"<form action=javascript:{HIT}><button>x",
    f"<meta http-equiv=refresh content='0;javascript:{HIT}'>",
    f"<object data=javascript:{HIT}>",
    f"<link rel=stylesheet href=javascript:{HIT}>",
    f"{{{{constructor.constructor('{HIT}')()}}}}",
    f"${{{HIT}}}",
    f"\u202e<script>{HIT}</script>",
    f"<noscript><p title='</noscript><img src=x onerror={HIT}>'>",
    f"<template><script>{HIT}</script></template>",
    f"<video><source onerror={HIT}></video>",
    "__proto__",
    "constructor",
    f"*/{HIT}/*",
]
FIELDS = ("type", "queue", "worker_id", "error", "trace_id", "idempotency_key", "payload", "result", "needs")
WATCH = """
  window.broken = [];
  document.addEventListener('securitypolicyviolation', (event) => window.broken.push(event.violatedDirective));
"""

# Whatever was drawn before has failed, and said so, by the time this one has.
FAILED_IMAGE = """() => new Promise((done) => {
  const image = Object.assign(new Image(), {onerror: () => setTimeout(done), src: 'data:,'});
  document.body.append(image);
  image.remove();
})"""


def hostile_tasks() -> list[dict[str, Any]]:
    """Every vector in every field, a few fields a task."""
    now = system_clock()
    statuses = cycle(["failed", "pending", "running", "completed"])
    tasks = []
    for number, (vector, status) in enumerate(zip(VECTORS, statuses, strict=False)):
        data = b64encode(json.dumps({vector: [vector, {"a": vector}]}).encode()).decode()
        tasks.append(
            {
                **dict.fromkeys(FIELDS, vector),
                "needs": [vector],
                "payload": data,
                "result": data if status == "completed" else None,
                "id": new_id(),
                "status": status,
                "available_at": now - number,
                "created_at": now - number,
                "updated_at": now,
                "rank": now,
                "version": 2,
                "attempt": 1,
                "lease_expires_at": now + 60 if status == "running" else None,
                "completed_at": now if status in ("failed", "completed") else None,
            }
        )
    return tasks


def notes() -> dict[str, Any]:
    now = system_clock()
    worker = dict.fromkeys(("worker_id", "status", "host", "version"), "") | {
        "started_at": now,
        "last_heartbeat": now,
        "capacity": 1,
    }
    workers = {
        f"workers/w{number}": worker
        | dict.fromkeys(("worker_id", "status", "host", "version"), vector)
        | {name: [vector] for name in ("queues", "types", "capabilities", "current_tasks")}
        for number, vector in enumerate(VECTORS)
    }
    control = {"paused_queues": VECTORS, "paused_types": VECTORS, "rate_limits": dict.fromkeys(VECTORS, 1.0)}
    fire = {"at": now, "outcome": "missed", "decided_at": now}
    schedules = {
        f"schedules/s{number}": {
            "schedule": {
                "name": f"s{number}",
                "task": {"type": vector, "queue": vector},
                "cron": vector,
                "timezone": vector,
            },
            "source": "code",
            "removed": True,
            "declared_by": vector,
            "recent": [fire | {"task_id": vector, "reason": vector}],
        }
        for number, vector in enumerate(VECTORS)
    }
    half = {"schedules/half": schedules["schedules/s0"] | {"recent": [fire | {"outcome": "constructor"}]}}
    return {**workers, **schedules, **half, "control": control}


def data_of(value: Any) -> str:
    return b64encode(json.dumps(value).encode()).decode()


def poison(place: Place, tasks: list[dict[str, Any]]) -> None:
    names = ("version", "status", "attempt", "failures", "available_at", "worker_id", "error")
    events = [[{name: task.get(name, 0) for name in names} | {"at": task["updated_at"]}] for task in tasks]
    if place.layout == "one":
        order = ("version", "at", "status", "attempt", "failures", "available_at", "worker_id", "error")
        records = [
            {"task": task, "events": [[event[name] for name in order] for event in some]}
            for task, some in zip(tasks, events, strict=True)
        ]
        kept = [{"name": name, "data": data_of(value), "version": "1"} for name, value in notes().items()]
        place.put("queue.json", {"format": 1, "version": 1, "writes": ["a"], "notes": kept, "tasks": records})
        return
    for task, some in zip(tasks, events, strict=True):
        place.put(
            f"tasks/{task['id'][0]}/{task['id']}.json", {"task": task, "nonce": "n", "writes": ["w"], "events": some}
        )
    for name, value in notes().items():
        key = name if name.startswith("workers/") else f"notes/{name}"
        place.put(f"{key}.json", {"name": name, "data": data_of(value), "writes": ["w"]})


async def unharmed(page: Page) -> None:
    await page.evaluate(FAILED_IMAGE)
    assert await page.evaluate("[window.hit ?? null, window.broken]") == [None, []]
    assert (
        await page.evaluate("document.querySelectorAll('main script, main iframe, main object, main style').length")
        == 0
    )
    assert await page.evaluate("[...document.querySelectorAll('a')].every((a) => !/^(javascript|data):/.test(a.href))")
    assert await page.evaluate("({}).polluted === undefined && Object.getPrototypeOf({}) === Object.prototype")


@pytest.mark.parametrize("layout", ["tasks", "one"])
async def test_nothing_a_bucket_holds_is_run(store: Store, tab: Tab, layout: str) -> None:
    place, tasks = store.place(layout=layout), hostile_tasks()
    assert len(VECTORS) * (len(FIELDS) + 10) > 100
    poison(place, tasks)
    page = tab.page
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    await page.add_init_script(WATCH)
    await page.goto(place.link("--write"))
    await page.locator(".failures li").first.wait_for()
    await unharmed(page)
    await page.evaluate("location.hash = '#/tasks'")
    await page.locator("tr[data-id]").nth(len(tasks) - 1).wait_for()
    await unharmed(page)
    await page.evaluate("location.hash = '#/workers'")
    await page.locator("[data-worker]").first.wait_for()
    await unharmed(page)
    await page.evaluate("location.hash = '#/schedules'")
    await page.locator("[data-schedule]").nth(len(VECTORS) - 1).wait_for()
    assert await page.locator("[data-schedule]").count() == len(VECTORS)
    assert await page.locator("[data-schedule] button").count() == 0
    await unharmed(page)
    for task in tasks[:: 2 if layout == "one" else 7]:
        await page.evaluate("(id) => { location.hash = `#/tasks/${id}`; }", task["id"])
        await page.locator("code.id", has_text=task["id"]).wait_for()
        await unharmed(page)
    assert dialogs == [] and tab.unexpected() == []


async def test_a_link_to_another_store_is_stopped_by_the_page(store: Store, tab: Tab) -> None:
    """Else a link could show a stranger's queue under this address, or carry requests elsewhere."""
    place = store.place()
    page, _, fragment = place.link().partition("#")
    said = json.loads(urlsafe_b64decode(fragment))
    asked: list[str] = []
    tab.page.on("requestfinished", lambda request: asked.append(request.url))
    for elsewhere in (
        {"u": place.endpoint.replace("127.0.0.1", "localhost")},
        {"u": "", "b": "theirs"},
        {"b": "versioned"},
    ):
        other = urlsafe_b64encode(json.dumps({**said, **elsewhere}).encode()).decode()
        await tab.page.goto("about:blank")
        await tab.page.goto(f"{page}#{other}")
        await tab.page.locator("[role=alert]", has_text="is unreachable").wait_for()
    assert all(url.startswith((place.page, "about:")) for url in asked), asked


async def test_a_page_of_the_same_store_cannot_bring_scripts_in(store: Store, tab: Tab) -> None:
    """Under an endpoint all buckets share an origin; the policy names the page's own folder."""
    place = store.place()
    place.put("evil.js", b"window.hit = 1;")
    await tab.page.add_init_script(WATCH)
    await tab.page.goto(f"{place.page}index.html")
    url = f"{place.endpoint}/{place.bucket}/{place.prefix}/evil.js"
    element = "(url) => { document.createElement('script').src = url; }"  # refused by Trusted Types
    with pytest.raises(Error, match="TrustedScriptURL"):
        await tab.page.evaluate(element, url)
    # Modules are no matter of Trusted Types: the policy of sources stops them.
    module = "(url) => import(url).then(() => 'run', () => 'stopped')"
    assert await tab.page.evaluate(module, url) == "stopped"
    assert await tab.page.evaluate("window.hit") is None
    assert await tab.page.evaluate("window.broken.length") > 0
