"""A queue with a task in every status, made by real calls, and the page's own source of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Page

import qo
from qo.client import Client
from qo.clock import system_clock
from qo.model import ANY, Status
from qo.notes import WORKERS, WorkerNote
from tests.dashboard.chromium import Tab
from tests.dashboard.zero_store import Place, Store

# A script that reads every task which a filter selects, page by page.
EVERYTHING = """
  const [filter, found] = [argument, []];
  let cursor = null;
  do {
    const page = await source.tasks({...filter, cursor});
    found.push(...page.tasks);
    cursor = page.cursor;
  } while (cursor);
  return found;
"""


class Answer(NamedTuple):
    value: Any
    code: str | None
    message: str
    requests: int


class Source:
    """`bucket.js` opened by a link on the published page, asked from here."""

    def __init__(self, page: Page, link: str) -> None:
        self.page, self.fragment = page, link.partition("#")[2]

    @classmethod
    async def on(cls, page: Page, place: Place, link: str) -> "Source":
        """Beside the page rather than on it: quicker, and nothing else asks."""
        await page.goto(f"{place.page}config.json")
        return cls(page, link)

    async def ask(self, script: str, argument: Any = None) -> Answer:
        """`script` is the body of an async function of `source` and `argument`."""
        run = f"""async ([fragment, argument]) => {{
          const {{open}} = await import(new URL('sources/bucket.js', document.baseURI));
          const source = await open({{credentials: fragment}});
          try {{
            return {{answer: await (async () => {{ {script} }})(), requests: source.requests}};
          }} catch (error) {{
            return {{code: error.code ?? 'bug', message: String(error.stack ?? error), requests: source.requests}};
          }}
        }}"""
        said = await self.page.evaluate(run, [self.fragment, argument])
        return Answer(said.get("answer"), said.get("code"), said.get("message", ""), said["requests"])

    async def get(self, script: str, argument: Any = None) -> Any:
        answer = await self.ask(script, argument)
        assert answer.code is None, answer.message
        return answer.value


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Client]:
    async with qo.connect(place.url) as client:
        yield client


# --- fixtures; conftest.py has them for all tests without a server


@pytest_asyncio.fixture(loop_scope="session", params=["tasks", "one"])
async def place(request: pytest.FixtureRequest, store: Store) -> Place:
    return store.place(layout=request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def client(place: Place) -> AsyncIterator[Client]:
    async with opened(place) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def source(tab: Tab, place: Place) -> Source:
    return await Source.on(tab.page, place, place.link())


# --- tasks


async def task_in(
    client: Client, status: Status, *, type: str = "work", payload: object = None, name: str = "main"
) -> str:
    """A task brought into a status the way tasks get there."""
    submitted = await client.enqueue(type, payload, queue=name, max_retries=0)
    task_id = submitted.id
    if status is Status.PENDING:
        return task_id
    if status is Status.CANCELLED:
        await client.cancel(task_id)
        return task_id
    (task,) = await client.dequeue(type, queue=name, lease=600)
    assert task.id == task_id
    if status in (Status.COMPLETED, Status.ARCHIVED):
        await client.ack(task, {"answer": 42})
    if status is Status.FAILED:
        await client.nack(task, "ValueError: no luck\n  in line 7")
    if status is Status.ARCHIVED:
        await client.archive(task_id)
    return task_id


async def fill(client: Client) -> dict[Status, str]:
    """One task of every status, and a worker. What waits comes last: it would be taken for the others."""
    order = [Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.ARCHIVED, Status.RUNNING, Status.PENDING]
    ids = {status: await task_in(client, status, payload={"status": status.value}) for status in order}
    now = system_clock()
    note = WorkerNote(
        worker_id="crane-7",
        started_at=now - 60,
        last_heartbeat=now,
        queues=("main",),
        types=("work",),
        capabilities=("gpu",),
        capacity=4,
        current_load=1,
        current_tasks=(ids[Status.RUNNING],),
        tasks_completed=12,
        tasks_failed=1,
        host="crane",
        pid=7,
        version="0.1.0",
    )
    await client.engine.write_note(f"{WORKERS}crane-7", msgspec.json.encode(note), expected=ANY)
    return ids
