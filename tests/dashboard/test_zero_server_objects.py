"""What a page makes of other objects in a bucket: foreign ones, damaged ones, versions, values stored apart."""

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

from qo.cli import main
from qo.client import Client
from qo.clock import system_clock
from qo.ids import new_id, new_token
from qo.model import ClaimRequest, NewTask, Status, cancel, complete
from tests.dashboard.chromium import FILES, Tab
from tests.dashboard.zero_queue import EVERYTHING, Source, fill, opened, task_in
from tests.dashboard.zero_store import Place, Store
from tests.engines.below import below
from tests.servers.process import s3_client

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("_keys")]


async def test_every_version_of_a_task_can_be_looked_at_without_its_lease(store: Store, tab: Tab) -> None:
    place = store.place("versioned")
    source = await Source.on(tab.page, place, place.narrow_link())
    async with opened(place) as client:
        task_id = await task_in(client, Status.PENDING, payload={"a": 1})
        (task,) = await client.dequeue("work")
        await client.heartbeat(task)
        await client.nack(task, "boom")
        await client.replay(task_id)
        events = await client.history(task_id)
    history = await source.get("return source.history(argument);", task_id)
    assert [event["status"] for event in history] == [event.status.value for event in events]
    assert [event["version"] for event in history] == [event.version for event in events]
    running = history[1]["task"]
    assert running["lease_expires_at"] is not None and running["worker_id"] == task.worker_id  # only a version knows
    assert all(event["task"]["payload"] == {"a": 1} for event in history)
    assert task.lease_id is not None and task.lease_id not in json.dumps(history)
    assert "lease_id" not in json.dumps(history)


async def test_what_is_not_ours_hides_nothing(place: Place, client: Client, source: Source) -> None:
    ids = await fill(client)
    if place.layout == "tasks":
        bad = new_id()
        kept = s3_client(place.endpoint).get_object(
            Bucket=place.bucket, Key=f"{place.prefix}/tasks/{ids[Status.FAILED][0]}/{ids[Status.FAILED]}.json"
        )
        document = json.loads(kept["Body"].read())
        wrongs: list[dict[str, Any]] = [{"created_at": "soon"}, {"status": "odd"}, {"needs": {}}, {"rank": None}]
        for number, wrong in enumerate(wrongs):
            other = f"{number}{bad[1:]}"
            place.put(f"tasks/{number}/{other}.json", {**document, "task": {**document["task"], "id": other, **wrong}})
        place.put(f"tasks/0/{ids[Status.FAILED]}.json", document)  # in a shard that is not its own
        place.put(f"tasks/e/e{bad[1:]}.json", b"\xff not JSON")
        place.put("workers/odd.json", {"name": "workers/odd", "data": "e30=", "writes": []})
        place.put("notes/control.json", b"[]")
        place.put("ready/0/odd", b"")
    else:
        s3 = s3_client(place.endpoint)
        key = f"{place.prefix}/queue.json"
        stored = json.loads(s3.get_object(Bucket=place.bucket, Key=key)["Body"].read())
        stored["tasks"] += [{}, {"task": {"id": 7}}, {"task": stored["tasks"][0]["task"]}]
        stored["notes"].append({"name": "workers/odd", "data": "e30=", "version": "1"})
        s3.put_object(Bucket=place.bucket, Key=key, Body=json.dumps(stored).encode())
    seen = await source.get("return source.overview();")
    assert seen["counts"] == dict.fromkeys(Status, 1)
    found = await source.get(EVERYTHING, {"limit": 50, "status": list(Status)})
    assert sorted(task["id"] for task in found) == sorted(ids.values())
    assert [worker["id"] for worker in await source.get("return source.workers();")] == ["crane-7"]


@pytest.mark.parametrize("hours", [3, 30, -30])  # 30: on a day for which the link has no key
async def test_a_computer_whose_clock_is_wrong_goes_by_the_stores(store: Store, tab: Tab, hours: int) -> None:
    place = store.place()
    async with opened(place) as client:
        task_id = await task_in(client, Status.FAILED)
        await tab.page.clock.install(time=system_clock() + hours * 3600)
        source = await Source.on(tab.page, place, place.link("--write"))
        await source.get("return source.act('replay', {ids: [argument]});", task_id)
        task = await client.get(task_id)
        assert task is not None and abs(task.available_at - system_clock()) < 60
        # A Date tells whole seconds, so it may be due in the next.
        assert [each.id for each in await client.dequeue("work", wait=10)] == [task_id]


async def test_values_that_lie_aside_are_shown_in_their_place_and_go_with_their_task(
    place: Place, client: Client, tab: Tab
) -> None:
    """As qo/engines/large_values/blobs.py marks them, here written by hand."""
    source = await Source.on(tab.page, place, place.narrow_link("--write"))
    engine = below(client.store)  # below one that would not let a reference be made up
    task_id, name = new_id(), "0" * 32
    keys = {kind: f"data/{task_id[0]}/{task_id}/{kind}_{name}" for kind in ("payload", "result")}
    place.put(keys["payload"], json.dumps({"large": "x" * 1000}).encode())
    await engine.add(
        [NewTask(id=task_id, queue="main", type="work", payload=b"\x01qo\x01@" + keys["payload"].encode())]
    )
    (task,) = await engine.claim(ClaimRequest(worker_id="w", lease_id=new_token(), queues=("main",)))
    await engine.apply([complete(task, b"\x01qo\x01@" + keys["result"].encode())])
    seen = await source.get("return source.task(argument);", task_id)
    assert seen["payload"] == {"large": "x" * 1000}
    assert seen["result"] == {"$missing": keys["result"]}
    history = await source.get("return source.history(argument);", task_id)
    assert [event["task"]["payload"] for event in history] == [seen["payload"]] * 3
    place.put(keys["result"], b"[" + b"1," * 1_100_000 + b"1]")
    large = (await source.get("return source.task(argument);", task_id))["result"]
    assert large == {"$large": keys["result"], "bytes": 2_200_003}
    await source.get("return source.act('delete', {ids: [argument]});", task_id)
    assert not set(keys.values()) & place.objects()


async def test_what_is_not_a_tasks_own_is_neither_shown_nor_removed_with_it(
    place: Place, client: Client, tab: Tab
) -> None:
    source = await Source.on(tab.page, place, place.link("--write"))
    engine = below(client.store)
    others = f"data/0/{'0' * 8}-0000-8000-8000-{'0' * 12}/payload_{'0' * 32}"
    forged = ["notes/secret.json", "ui/secret.js", others, "../notes/secret.json"]
    for key in forged[:3]:
        place.put(key, b'"secret"')
    new = [NewTask(id=new_id(), queue="main", type="work", payload=b"\x01qo\x01@" + key.encode()) for key in forged]
    await engine.add(new)
    await engine.apply([cancel(task.id) for task in new])
    for task, key in zip(new, forged, strict=True):
        assert (await source.get("return source.task(argument);", task.id))["payload"] == {"$missing": key}
    await source.get("return source.act('delete', {ids: argument});", [task.id for task in new])
    assert await engine.get([task.id for task in new]) == [None] * len(new)
    assert set(forged[:3]) <= place.objects()


@contextmanager
def served() -> Iterator[str]:
    """The page's files at an address that is not the store's."""
    handler = partial(_Quiet, directory=str(FILES))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


async def test_a_page_served_elsewhere_is_let_in_by_bucket_setup_and_only_then(store: Store, tab: Tab) -> None:
    place = store.place()
    s3_client(place.endpoint).create_bucket(Bucket="elsewhere")
    place = place._replace(bucket="elsewhere")
    async with opened(place) as client:
        task_id = await task_in(client, Status.FAILED)
        with served() as origin:
            await tab.page.goto(f"{origin}/icon.svg")
            source = Source(tab.page, place.link("--write"))
            opening = (
                "const s = await (await import('/sources/bucket.js')).open({credentials: argument}); return s.title;"
            )
            run = f"async (argument) => {{ try {{ {opening} }} catch (error) {{ return error.code; }} }}"
            assert await tab.page.evaluate(run, source.fragment) == "no_answer"

            setup = ["bucket-setup", place.url.replace("&layout=tasks", ""), "--origin", origin, "--json"]
            done = await asyncio.to_thread(CliRunner().invoke, main, setup)
            assert done.exit_code == 0, done.output
            answer = await source.get("return source.act('replay', {ids: [argument]});", task_id)
            assert answer == {"done": 1, "refused": []}
            assert len(await source.get("return source.history(argument);", task_id)) == 4
            (task,) = await client.dequeue("work")
            await source.get("return source.act('cancel', {ids: [argument]});", task_id)
            assert task.id == task_id
    entries = [key for key in place.objects() if key.startswith(("ready/", "leases/"))]
    assert entries == []  # removed by the page: DELETE is let in too
