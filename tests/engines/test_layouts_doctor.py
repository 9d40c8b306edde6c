"""`qo doctor` on a bucket: foreign objects under qo's prefixes are reported, and never changed."""

from pathlib import Path

import pytest

from qo.bucket import NEW
from qo.buckets.folder.bucket import FolderBucket
from qo.engines import examine, open_engine
from qo.model import Status
from qo.reports import Finding
from qo.testing.samples import claim, new, task_id

FOREIGN = {
    "tasks/0/readme.txt": b"hello",
    f"tasks/{task_id(7)[0]}/{task_id(7)}.json": b"not a task",
    "ready/x": b"",
    "leases/0/y": b"",
    "notes/control.json": b"not ours",
}


async def found(url: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in await examine(url)}


@pytest.mark.parametrize("query", ["", "?layout=one"])
async def test_a_folder_in_use_passes(query: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}{query}"
    engine = open_engine(url)
    await engine.open()
    await engine.add([new(), new(1)])
    await engine.close()
    findings = await found(url)
    assert [name for name, finding in findings.items() if finding.ok is False] == []
    assert findings["contents"].ok
    assert ("versioning" in findings) == (query == "")  # the history of the other layouts needs none


async def test_foreign_objects_are_reported_and_do_not_stop_workers(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    for key, data in FOREIGN.items():
        await bucket.put(key, data, expected=NEW)
    url = f"file://{tmp_path}"
    contents = (await found(url))["contents"]
    assert contents.ok is None
    for key in FOREIGN:
        assert key in contents.detail
    engine = open_engine(url)
    await engine.open()
    await engine.add([new()])
    assert [task.id for task in await claim(engine)] == [task_id(0)]
    assert await engine.add([new(7)]) == [(task_id(7), False)]
    assert [(lane.status, n) for lane, n in (await engine.count()).items()] == [(Status.RUNNING, 1)]
    await engine.close()
    for key, data in FOREIGN.items():
        blob = await bucket.get(key)
        assert blob is not None
        assert blob.data == data


async def test_an_object_that_would_stop_every_worker_is_an_error(tmp_path: Path) -> None:
    await FolderBucket(tmp_path).put("queue.json", b"not ours", expected=NEW)
    contents = (await found(f"file://{tmp_path}?layout=one"))["contents"]
    assert contents.ok is False
    assert "move it away" in contents.detail
