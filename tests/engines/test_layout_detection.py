"""The layout of a queue is found again without `layout=` in the URL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.bucket import NEW
from qo.buckets.folder.bucket import FolderBucket
from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines import examine, open_engine
from qo.engines.layout_detection import CLOUD_LAYOUT, find_layout, search_layout
from qo.engines.layouts import default_layout
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.errors import InvalidSetting, Refused
from qo.testing.samples import claim, new, task_id

LAYOUTS = ["tasks", "one", "sqlite", "log"]


async def opened(url: str) -> Engine:
    engine = open_engine(url)
    await engine.open()
    return engine


async def create(url: str) -> None:
    engine = await opened(url)
    await engine.add([new(1, payload=b'"' + b"x" * 300_000 + b'"'), new(2)])
    await engine.close()


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_queue_is_found_again(layout: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/q"
    await create(f"{url}?layout={layout}")
    assert await find_layout(FolderBucket(tmp_path / "q")) == layout
    engine = await opened(url)
    await engine.open()
    assert [len(task.payload) for task in await claim(engine)] == [300_002, 4]
    await engine.close()
    names = {path.name.rstrip("=") for path in (tmp_path / "q").rglob("*")}
    assert len(names & {"format.json", "queue.json", "queue.sqlite", "meta.json"}) == 1
    finding = (await examine(url))[0]
    assert (finding.ok, finding.detail) == (True, f"tasks are kept in the layout `{layout}`")


async def test_a_new_queue_gets_the_default_layout(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    assert await find_layout(bucket) is None
    await create(f"file://{tmp_path}")
    assert await find_layout(bucket) == "tasks"


async def test_a_queue_of_an_early_version_is_found(tmp_path: Path) -> None:
    await create(f"file://{tmp_path}")
    bucket = FolderBucket(tmp_path)
    await bucket.delete("format.json")
    assert await find_layout(bucket) == "tasks"


async def test_objects_with_similar_names_are_no_queue() -> None:
    bucket = MemoryBucket()
    for key in ("queue.json.bell", "queue.txt", "format.json.old", "log/meta.json.old", "notes/x.json"):
        await bucket.put(key, b"", expected=NEW)
    assert await find_layout(bucket) is None


async def _add_queue(engine: Engine) -> None:
    await engine.open()
    await engine.add([new(3)])
    await engine.close()


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_layout_that_the_queue_does_not_have_is_refused_and_creates_nothing(
    layout: str, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/q"
    await create(f"{url}?layout={layout}")
    others = [other for other in LAYOUTS if other != layout]
    for other in others:
        with pytest.raises(InvalidSetting, match=f"layout={other}: the queue here is in the layout `{layout}`; remove"):
            await create(f"{url}?layout={other}")
        (finding,) = await examine(f"{url}?layout={other}")
        assert (finding.name, finding.ok) == ("layout", False)
    assert await find_layout(FolderBucket(tmp_path / "q")) == layout


async def test_two_queues_in_one_place_are_an_error_that_names_both(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    await create(f"{url}?layout=log")
    await _add_queue(ObjectPerTaskEngine(FolderBucket(tmp_path)))  # an early version created one beside another
    with pytest.raises(InvalidSetting, match=r"layouts `log` and `tasks`; choose one with layout= in the URL"):
        await opened(url)
    (finding,) = await examine(url)
    assert not finding.ok
    assert "`log` and `tasks`" in finding.detail
    engine = await opened(f"{url}?layout=log")
    assert [task.id for task in await claim(engine)] == [task_id(1), task_id(2)]
    await engine.close()


async def test_an_option_of_another_layout_is_refused_when_the_layout_is_known(tmp_path: Path) -> None:
    await create(f"file://{tmp_path}?layout=log")
    with pytest.raises(InvalidSetting, match="'index_mode' is not an option of the layout `log`"):
        await opened(f"file://{tmp_path}?index_mode=hybrid")
    with pytest.raises(InvalidSetting, match="'submit' needs the layout in the URL: layout=log"):
        await opened(f"file://{tmp_path}?submit=inbox")
    with pytest.raises(InvalidSetting, match="'mode' needs the layout in the URL: layout=one or layout=sqlite"):
        await opened(f"file://{tmp_path}?mode=direct")
    engine = await opened(f"file://{tmp_path}?payload_limit=500000&versions=true")
    assert engine.payload_limit == 500_000
    await engine.close()


class RestrictedBucket(MemoryBucket):
    """Its credentials may list only the objects of one layout."""

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        if prefix != "log/meta.json":
            raise Refused(f"the credentials may not list {prefix}")
        async for key in super().keys(prefix, after=after):
            yield key


async def test_what_a_role_may_not_list_is_not_there() -> None:
    bucket = RestrictedBucket()
    assert await find_layout(bucket) is None
    await bucket.put("log/meta.json", b"", expected=NEW)
    assert await find_layout(bucket) == "log"


async def test_a_role_for_one_layout_creates_a_queue_in_it() -> None:
    found = await search_layout(RestrictedBucket())
    assert found.chosen("tasks") == "log" == found.chosen("log")
    anyone = await search_layout(MemoryBucket())
    assert [anyone.chosen(layout) for layout in LAYOUTS] == LAYOUTS


def test_an_option_of_the_layout_tasks_selects_it() -> None:
    assert {default_layout(f"{scheme}://b/q?index_mode=hybrid") for scheme in ("s3", "gs", "az", "file")} == {"tasks"}
    assert default_layout("s3://b/q?payload_limit=9") == default_layout("gs://b/q") == CLOUD_LAYOUT
    assert default_layout("file:///q") == "tasks"
