"""Layouts by URL."""

import asyncio
from pathlib import Path

import pytest

from qo.engines import open_engine, with_options
from qo.engines.layouts import parse
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.one_object import OneObjectEngine
from qo.errors import InvalidSetting
from qo.testing.samples import claim, new, task_id
from tests.engines.below import below


def test_a_url_names_the_layout_and_its_options() -> None:
    assert parse("s3://b/p?endpoint=http://h:1", {}) == ("tasks", {}, "s3://b/p?endpoint=http%3A%2F%2Fh%3A1")
    assert parse("file:///d?layout=one&mode=direct", {}) == ("one", {"mode": "direct"}, "file:///d")
    assert parse("file:///d?layout=log&submit=inbox", {}) == ("log", {"submit": "inbox"}, "file:///d")
    layout, options, _ = parse("file:///d?ready_page_size=5", {"QO_READY_PAGE_SIZE": "9", "QO_INDEX_MODE": "hybrid"})
    assert (layout, options) == ("tasks", {"ready_page_size": "5", "index_mode": "hybrid"})
    assert parse("file:///d?layout=one", {"QO_INDEX_MODE": "hybrid"}) == ("one", {}, "file:///d")


@pytest.mark.parametrize(
    "query",
    [
        "layout=none",
        "layout=",
        "mode=direct",
        "layout=one&index_mode=hybrid",
        "layout=one&mode=both",
        "layout=log&submit=both",
        "layout=log&mode=group",
        "index_mode=fast",
        "ready_page_size=0",
        "ready_page_size=1001",
        "log_scan_page_size=many",
        "page=3",
        "scan_interval=0",
        "scan_interval=soon",
        "shards=g",
        "shards=7-0",
        "shards=",
        "layout=one&shards=0",
        "payload_limit=0",
        "layout=one&payload_limit=lots",
    ],
)
def test_an_invalid_option_is_refused(query: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting):
        open_engine(f"file://{tmp_path}?{query}")


async def test_the_scan_interval_may_have_a_unit_as_in_the_options_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QO_SCAN_INTERVAL", "2h")
    engine = open_engine(f"file://{tmp_path}")
    await engine.open()
    await engine.close()
    open_engine(f"file://{tmp_path}?layout=tasks&scan_interval=30d")


async def test_two_engines_on_one_folder_share_its_tasks(tmp_path: Path) -> None:
    for query, kind in (("?layout=tasks", ObjectPerTaskEngine), ("?layout=one", OneObjectEngine)):
        url = f"file://{tmp_path / kind.__name__}{query}"
        one, other = open_engine(url), open_engine(url)
        assert isinstance(below(one), kind)
        await one.open()
        await other.open()
        await one.add([new()])
        assert [task.id for task in await claim(other)] == [task_id(0)]
        await one.close()
        await other.close()


@pytest.mark.parametrize("mode", ["index-only", "hybrid", "log-scan"])
async def test_a_worker_of_some_shards_claims_only_their_tasks(mode: str, tmp_path: Path) -> None:
    names = [0x00000001, 0x30000000, 0x40000000, 0xA0000000, 0xF0000000]
    everyone = open_engine(f"file://{tmp_path}")
    await everyone.add([new(name) for name in names[:3]] + [new(name, delay=0.001) for name in names[3:]])
    engine = open_engine(f"file://{tmp_path}?shards=0-3,f&index_mode={mode}")
    async with asyncio.timeout(30):
        claimed: set[str] = set()
        while len(claimed) < 3:
            claimed |= {task.id for task in await claim(engine)}
    assert claimed == {task_id(name) for name in (0x00000001, 0x30000000, 0xF0000000)}
    assert await claim(engine) == []
    assert {task.id for task in await claim(everyone)} == {task_id(0x40000000), task_id(0xA0000000)}
    await everyone.close()
    await engine.close()


async def test_a_deep_queue_is_read_in_its_own_shards_only(tmp_path: Path) -> None:
    everyone = open_engine(f"file://{tmp_path}")
    await everyone.add([new(n << 26) for n in range(64)])  # four in each shard
    engine = open_engine(f"file://{tmp_path}?shards=0,f&ready_page_size=3")
    claimed: set[str] = set()
    while tasks := await claim(engine, limit=3):
        claimed |= {task.id for task in tasks}
    assert claimed == {task_id(n << 26) for n in (*range(4), *range(60, 64))}
    await everyone.close()
    await engine.close()


def test_options_are_put_into_the_url_of_a_bucket() -> None:
    options = {"shards": "0,1", "index_mode": "hybrid"}
    assert (
        with_options("s3://b/p?shards=f&layout=tasks", options) == "s3://b/p?layout=tasks&shards=0,1&index_mode=hybrid"
    )
    with pytest.raises(InvalidSetting, match="shards, index_mode: only for buckets and folders, not for sqlite"):
        with_options("sqlite:///qo.db", options)
