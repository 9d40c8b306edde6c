"""Task objects with forged references, written by other programs: the values are neither shown nor removed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import qo
from qo.bucket import ANY, Bucket
from qo.engines.large_values import LargeValuesEngine
from qo.engines.large_values.blobs import own_key, reference
from qo.model import Status, cancel, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id
from tests.engines.layout_buckets import BUCKETS
from tests.engines.layouts import LAYOUTS

NAME = "0" * 32
OTHERS = f"data/0/{task_id(99)}"
FORGED = [
    "notes/control.json",
    "admin/tokens.json",
    "ui/index.html",
    "queue.json",
    f"tasks/0/{task_id(99)}.json",
    f"{OTHERS}/payload_{NAME}",  # another task's
    f"{OTHERS}/result_{NAME}",
    f"data/1/{task_id(0)}/payload_{NAME}",  # not the id's folder
    f"data/0/{task_id(0)}/payload_{NAME}/../../../../notes/control.json",
    f"data/0/{task_id(0)}/../../../notes/control.json",
    "../notes/control.json",
    "/etc/passwd",
    "",
]


@pytest.fixture(params=["memory", "folder", "s3"])
async def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bucket]:
    async with BUCKETS[request.param](ManualClock(), tmp_path / "bucket") as bucket:
        yield bucket


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_forged_reference_neither_shows_nor_removes_values_of_other_tasks(bucket: Bucket, layout: str) -> None:
    clock = ManualClock()
    engine = LargeValuesEngine(LAYOUTS[layout](bucket, clock), bucket, clock=clock)
    targets = [key for key in FORGED if key and ".." not in key and key[0] != "/" and key != "queue.json"]
    for key in targets:
        await bucket.put(key, b'"secret"', expected=ANY)
    below = engine.engine  # without the wrapper, as another program would write it
    await below.add([new("result")])
    await below.apply([complete(await claim_one(below), reference("notes/control.json", b'"secret"'))])
    await below.add([new(n, payload=reference(key, b'"secret"')) for n, key in enumerate(FORGED)])
    await below.apply([cancel(task_id(n)) for n in range(len(FORGED))])
    ids = [*map(task_id, range(len(FORGED))), task_id("result")]
    seen = [task for task in await engine.get(ids) if task is not None]
    assert len(seen) == len(ids)
    assert not any(b"secret" in task.payload + (task.result or b"") for task in seen)
    assert await engine.delete(ids) == [True] * len(ids)
    assert [key for key in targets if await bucket.get(key) is None] == []
    await engine.close()


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_task_with_a_forged_payload_fails_and_the_others_run(layout: str) -> None:
    clock = ManualClock()
    async with BUCKETS["memory"](clock, Path()) as bucket:
        engine = LargeValuesEngine(LAYOUTS[layout](bucket, clock), bucket, clock=clock)
        await bucket.put("notes/control.json", b"{}", expected=ANY)
        await engine.engine.add([new(payload=reference("notes/control.json", b"{}")), new(1)])
        assert [task.id for task in await claim(engine)] == [task_id(1)]
        assert (await stored(engine)).status is Status.FAILED
        await engine.close()


async def test_a_store_in_one_database_ignores_forged_references(tmp_path: Path) -> None:
    async with BUCKETS["folder"](ManualClock(), tmp_path) as bucket:
        await bucket.put("admin/tokens.json", b"{}", expected=ANY)
        store = await qo.S3Store.create(bucket)
        assert isinstance(store.store, LargeValuesEngine)
        await store.store.engine.add([new(payload=reference("admin/tokens.json", b"{}"))])
        await store.engine.apply([cancel(task_id(0))])
        assert await store.engine.delete([task_id(0)]) == [True]
        assert await bucket.get("admin/tokens.json") is not None
        await store.close()


def test_a_reference_is_valid_only_for_values_of_its_own_task() -> None:
    mine, follower = f"data/0/{task_id(0)}/payload_{NAME}", task_id(3)
    named = f"data/0/{task_id(0)}/payload_{follower.replace('-', '')}{NAME}"
    assert own_key(reference(mine, b""), task_id(0), "payload") == mine
    assert own_key(reference(mine, b""), task_id(0), "result") is None
    assert own_key(reference(named, b""), task_id(0), "payload") == named
    assert own_key(reference(named, b""), follower, "payload") == named
    assert own_key(reference(named, b""), task_id(4), "payload") is None
    for key in FORGED:
        assert own_key(reference(key, b""), task_id(0), "payload") is None
