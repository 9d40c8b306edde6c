"""Connections that break while a page writes: what it says happened is what happened."""

import pytest
from playwright.async_api import Route

from qo.client import Client
from qo.model import Status
from tests.dashboard.chromium import Tab
from tests.dashboard.test_zero_server_actions import check
from tests.dashboard.zero_queue import Source, opened, task_in
from tests.dashboard.zero_store import Place, Store

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("_keys")]
ACT = "return source.act(argument[0], {ids: [argument[1]]});"


class Line:
    """The way to the store. It breaks the first so many guarded writes: before they arrive, or on the way back."""

    def __init__(self, tab: Tab, place: Place) -> None:
        self.tab, self.place = tab, place
        self.broken = 0

    async def cut(self, times: int, *, arrives: bool, status: int | None = None) -> None:
        async def handle(route: Route) -> None:
            guarded = route.request.method == "PUT" and "if-match" in await route.request.all_headers()
            if not guarded or self.broken == times:
                await route.fallback()
                return
            self.broken += 1
            if arrives:
                await route.fetch()
            if status is None:
                await route.abort("connectionreset")
            else:
                await route.fulfill(status=status, body="<Error><Code>InternalError</Code></Error>")

        await self.tab.page.route(f"{self.place.endpoint}/{self.place.bucket}/{self.place.prefix}/**", handle)


@pytest.mark.parametrize(("arrives", "status"), [(True, None), (True, 500), (False, None)])
async def test_a_write_that_was_cut_off_is_done_once(
    place: Place, client: Client, tab: Tab, arrives: bool, status: int | None
) -> None:
    task_id = await task_in(client, Status.FAILED)
    source, line = await Source.on(tab.page, place, place.link("--write")), Line(tab, place)
    await line.cut(2, arrives=arrives, status=status)
    answer = await source.get(ACT, ["replay", task_id])
    assert answer == {"done": 1, "refused": []} and line.broken == (1 if arrives else 2)
    statuses = [event.status for event in await client.history(task_id)]
    assert statuses == ["pending", "running", "failed", "pending"]
    task = await client.get(task_id)
    assert task is not None
    await check(place, client, [task])


async def test_a_write_whose_outcome_cannot_be_determined_is_reported_as_unknown(store: Store, tab: Tab) -> None:
    place = store.place()
    source, line = await Source.on(tab.page, place, place.link("--write")), Line(tab, place)
    async with opened(place) as client:
        task_id = await task_in(client, Status.FAILED)
        await line.cut(99, arrives=False)
        answer = await source.get(ACT, ["replay", task_id])
        assert "it is unknown whether" in answer["refused"][0]["why"]
        task = await client.get(task_id)
        assert task is not None and task.status is Status.FAILED


async def test_a_page_that_loses_a_race_announces_it_and_tries_again(store: Store, tab: Tab) -> None:
    """A writer that never pauses would otherwise win every race."""
    place = store.place(layout="one")
    source, line = await Source.on(tab.page, place, place.narrow_link("--write")), Line(tab, place)
    async with opened(place) as client:
        task_id = await task_in(client, Status.FAILED)
        assert "queue.json.contention" not in place.objects()
        await line.cut(2, arrives=False, status=412)
        assert await source.get(ACT, ["replay", task_id]) == {"done": 1, "refused": []}
        assert "queue.json.contention" in place.objects()
