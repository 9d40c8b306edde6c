"""Layouts by URL."""

from pathlib import Path

import pytest

from qo.engines import open_engine
from qo.engines.layouts import parse
from qo.engines.one_object import OneObjectEngine
from qo.engines.per_task import PerTaskEngine
from qo.engines.spacious import SpaciousEngine
from qo.errors import InvalidSetting
from qo.testing.samples import claim, new, task_id


def test_a_url_names_the_layout_and_its_options() -> None:
    assert parse("s3://b/p?endpoint=http://h:1", {}) == ("tasks", {}, "s3://b/p?endpoint=http%3A%2F%2Fh%3A1")
    assert parse("file:///d?layout=one&mode=direct", {}) == ("one", {"mode": "direct"}, "file:///d")
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
        "index_mode=fast",
        "ready_page_size=0",
        "ready_page_size=1001",
        "log_scan_page_size=many",
        "page=3",
        "payload_limit=0",
        "layout=one&payload_limit=lots",
    ],
)
def test_what_makes_no_sense_is_refused(query: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting):
        open_engine(f"file://{tmp_path}?{query}")


async def test_two_engines_on_one_folder_share_its_tasks(tmp_path: Path) -> None:
    for query, kind in (("", PerTaskEngine), ("?layout=one", OneObjectEngine)):
        url = f"file://{tmp_path}{query}"
        one, other = open_engine(url), open_engine(url)
        assert isinstance(one, SpaciousEngine)
        assert isinstance(one.engine, kind)
        await one.open()
        await other.open()
        await one.add([new()])
        assert [task.id for task in await claim(other)] == [task_id(0)]
        await one.close()
        await other.close()
