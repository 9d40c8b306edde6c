"""The page itself, opened by a link from the bucket, with nothing of qo running: looked at and clicked."""

import asyncio
import re

import pytest
from playwright.async_api import Page, expect

from qo.client import Client
from qo.model import ANY, Status
from tests.dashboard.chromium import Tab
from tests.dashboard.zero_queue import fill, task_in
from tests.dashboard.zero_store import READER, Place, Store

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("_keys")]
TIMEOUT = 20_000.0  # milliseconds
KEEP_SUMMARIES = """() => {
  window.summaries = [];
  const keep = () => window.summaries.push(document.querySelector('.summary')?.textContent ?? '');
  new MutationObserver(keep).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""


BOTH = pytest.mark.parametrize("layout", ["tasks", "one"])


@pytest.fixture
def layout() -> str:
    return "tasks"


@pytest.fixture
def place(layout: str, store: Store) -> Place:
    return store.place("versioned", layout)


async def open_page(tab: Tab, link: str) -> Page:
    tab.page.set_default_timeout(TIMEOUT)
    await tab.page.goto(link)
    await tab.page.locator("main > *").first.wait_for()
    return tab.page


async def go(page: Page, where: str) -> None:
    await page.evaluate("(where) => { location.hash = where; }", where)


async def test_the_page_makes_markup_of_nothing(place: Place, client: Client, tab: Tab) -> None:
    """Its policy lets the answers of the store be parsed as XML, and nothing else become a document."""
    await client.enqueue("seen")
    page = await open_page(tab, place.narrow_link())
    await expect(page.locator('.stat[data-status="pending"] b')).to_have_text("1", timeout=TIMEOUT)
    assert tab.unexpected() == []
    refused = (
        "(html) => { try { document.body.innerHTML = html; return 'made'; } catch (error) { return error.name; } }"
    )
    assert await page.evaluate(refused, "<b>x</b>") == "TypeError"
    policy = "() => { try { trustedTypes.createPolicy('x', {}); return 'made'; } catch (error) { return error.name; } }"
    assert await page.evaluate(policy) == "TypeError"


@BOTH
async def test_a_link_shows_the_whole_queue_and_keeps_nothing(place: Place, client: Client, tab: Tab) -> None:
    ids = await fill(client)
    await client.recorder.flush()
    requests: list[str] = []
    tab.page.on("request", lambda request: requests.append(request.url))
    page = await open_page(tab, place.narrow_link())

    for status in Status:
        await expect(page.locator(f'.stat[data-status="{status}"] b')).to_have_text("1", timeout=TIMEOUT)
    await expect(page.locator("[data-queue=main]")).to_be_visible()
    await expect(page.locator(".failures")).to_contain_text("no luck")
    await expect(page.locator(".chart-caption")).to_have_text("2 completed and 1 failed in the last 60 minutes")
    await expect(page.locator(".mode")).to_have_text("read-only")
    await expect(page.locator(".where")).to_have_attribute("title", f"s3://{place.bucket}/{place.prefix}")

    await go(page, "#/tasks?status=failed")
    await expect(page.locator(f'tr[data-id="{ids[Status.FAILED]}"]')).to_be_visible(timeout=TIMEOUT)
    await expect(page.locator("tr[data-id]")).to_have_count(1)
    await expect(page.locator("[data-action]:visible")).to_have_count(0)

    await go(page, f"#/tasks/{ids[Status.FAILED]}")
    await expect(page.locator("[data-section=error]")).to_contain_text("ValueError: no luck", timeout=TIMEOUT)
    await expect(page.locator("[data-section=payload]")).to_contain_text("failed")
    await expect(page.locator("[data-version=from] option")).to_have_count(3)

    await go(page, f"#/tasks/{ids[Status.RUNNING]}")
    await expect(page.locator("[data-lease]")).to_contain_text("expires in", timeout=TIMEOUT)

    await go(page, "#/workers")
    await expect(page.locator("[data-worker=crane-7]")).to_contain_text("12", timeout=TIMEOUT)
    await expect(page.locator("[data-worker=crane-7]")).to_contain_text("gpu")

    assert "#/workers" in page.url and len(page.url) < 200
    assert await page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert (await page.context.storage_state())["cookies"] == []
    assert all(url.startswith(place.endpoint) for url in requests)
    assert "qo-test-secret" not in await page.content()
    assert tab.unexpected() == []


async def test_views_that_need_a_server_say_so(place: Place, client: Client, tab: Tab) -> None:
    await client.enqueue("work", batch="b-1")
    page = await open_page(tab, place.narrow_link())
    for view in ("batches", "batches/b-1", "workflows", "workflows/w-1", "limits", "audit"):
        await go(page, f"#/{view}")
        await expect(page.locator("main [data-state]")).to_contain_text(
            re.compile(rf"{'audit trail' if view == 'audit' else view.split('/')[0]} needs? a server", re.IGNORECASE),
            timeout=TIMEOUT,
        )


async def test_a_shard_is_chosen_and_only_its_tasks_are_shown(place: Place, client: Client, tab: Tab) -> None:
    ids = [(await client.enqueue("work", n)).id for n in range(24)]
    shard = ids[0][0]
    page = await open_page(tab, place.link(keys=READER))
    await go(page, "#/tasks")
    await expect(page.locator("tr[data-id]")).to_have_count(len(ids), timeout=TIMEOUT)
    await page.get_by_label("Shard").select_option(shard)
    inside = [task_id for task_id in ids if task_id.startswith(shard)]
    await expect(page.locator("tr[data-id]")).to_have_count(len(inside), timeout=TIMEOUT)
    assert f"shard={shard}" in page.url


async def test_reloading_discards_the_credentials_and_shows_a_notice(place: Place, tab: Tab) -> None:
    page = await open_page(tab, place.link(keys=READER))
    await page.reload()
    await expect(page.locator("form")).to_contain_text("qo dashboard link --paste", timeout=TIMEOUT)
    await page.goto(f"{place.page}index.html#eyJrIjoi")
    await page.reload()
    await expect(page.locator("[role=alert]")).to_contain_text("This link is incomplete or damaged", timeout=TIMEOUT)


async def test_a_code_is_pasted_into_the_page_and_gets_into_no_address(place: Place, client: Client, tab: Tab) -> None:
    await fill(client)
    link = place.link(keys=READER)
    addresses: list[str] = []
    tab.page.on("framenavigated", lambda frame: addresses.append(frame.url))
    page = await open_page(tab, f"{place.page}index.html")
    await page.get_by_label("Code").fill("not a code")
    await page.get_by_role("button", name="Open").click()
    await expect(page.locator("[role=alert]")).to_contain_text("damaged", timeout=TIMEOUT)
    code = link.partition("#")[2]
    await page.get_by_label("Code").fill(code)
    await page.get_by_role("button", name="Open").click()
    await expect(page.locator(".where")).to_have_attribute(
        "title", f"s3://{place.bucket}/{place.prefix}", timeout=TIMEOUT
    )
    assert addresses and not any(code in address for address in addresses)
    assert code not in await page.content()


@BOTH
async def test_a_failed_task_is_replayed_by_a_click_and_runs(place: Place, client: Client, tab: Tab) -> None:
    task_id = await task_in(client, Status.FAILED)
    page = await open_page(tab, place.narrow_link("--write"))
    await go(page, "#/tasks?status=failed")
    await page.locator(f'tr[data-id="{task_id}"] [data-action=replay]').click()
    await expect(page.locator(".toast")).to_contain_text("1 task replayed", timeout=TIMEOUT)
    (task,) = await client.dequeue("work", wait=10)
    assert task.id == task_id and task.attempt == 2
    await client.ack(task, {"then": "it worked"})
    await go(page, f"#/tasks/{task_id}")
    await expect(page.locator("[data-section=result]")).to_contain_text("it worked", timeout=TIMEOUT)
    await page.locator("[data-action=delete]").click()
    await page.locator("dialog[open]").get_by_role("button", name="Delete", exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text("1 task deleted", timeout=TIMEOUT)
    assert await client.get(task_id) is None
    # In the layout `one`, the registration of the client that dequeued is in the same object. A write of the page
    # may lose against it, and is repeated.
    assert tab.unexpected("412") == []


async def test_a_refused_write_shows_the_stores_error(place: Place, client: Client, tab: Tab) -> None:
    """The link says it may write; the store knows better."""
    task_id = await task_in(client, Status.FAILED)
    page = await open_page(tab, place.link("--write", keys=READER))
    await go(page, f"#/tasks/{task_id}")
    await page.locator("[data-action=replay]").click()
    await expect(page.locator(".toast")).to_contain_text("may not write", timeout=TIMEOUT)
    task = await client.get(task_id)
    assert task is not None and task.status is Status.FAILED
    assert tab.unexpected("403") == []


async def test_pausing_by_a_click_pauses_workers(place: Place, client: Client, tab: Tab) -> None:
    await fill(client)
    page = await open_page(tab, place.link("--write"))
    await page.locator("[data-do=pause]").click()
    await expect(page.locator(".notice")).to_contain_text("Everything is paused", timeout=TIMEOUT)
    assert (await client.controls.read()).paused
    await page.locator("[data-do=resume]").click()
    await expect(page.locator("[data-do=pause]")).to_be_visible(timeout=TIMEOUT)
    assert not (await client.controls.read()).paused


async def test_an_expired_link_shows_an_error(place: Place, tab: Tab) -> None:
    link = place.link("--expires", "1m")
    await tab.page.clock.install()
    page = await open_page(tab, link)
    await tab.page.clock.fast_forward("02:00")
    await page.locator("nav a", has_text="Workers").click()
    await expect(page.locator("[role=alert]:visible").first).to_contain_text("expired", timeout=TIMEOUT)


async def test_a_page_that_has_not_read_all_schedules_shows_a_notice(place: Place, client: Client, tab: Tab) -> None:
    """A read that fails shows nothing, and the next one continues: so there are enough for three reads of 400."""
    await client.schedules.add("s0", task="t", every=60)
    note = await client.engine.read_note("schedules/s0")
    assert note is not None
    copies = {f"s{n}": note.data.replace(b'"s0"', f'"s{n}"'.encode()) for n in range(1, 850)}
    writes = [client.engine.write_note(f"schedules/{name}", data, expected=ANY) for name, data in copies.items()]
    await asyncio.gather(*writes)
    page = await open_page(tab, place.narrow_link())
    await page.evaluate(KEEP_SUMMARIES)
    await go(page, "#/schedules")
    partly = "00 active; this page does not show all schedules"
    await page.wait_for_function("(text) => window.summaries.some((each) => each.includes(text))", arg=partly)
    for _ in range(2):  # two reads, without waiting for the next refresh
        await go(page, "#/workers")
        await go(page, "#/schedules")
    summary = page.locator(".summary").first
    await expect(summary).to_contain_text("850 schedules, 850 active; qo schedules shows all", timeout=3 * TIMEOUT)
