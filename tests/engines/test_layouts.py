"""Every layout on every bucket, and every way to set a layout up: one contract."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.engine import Engine
from qo.engines.object_per_task import IndexMode, ObjectPerTaskEngine, TasksOptions
from qo.testing import EngineContract, ManualClock, random_history
from tests.engines.damage import DamagedLayouts
from tests.engines.layout_buckets import BUCKETS
from tests.engines.layouts import EVERYTHING_ASIDE, LAYOUTS, VARIANTS, Layout

EVERY = [f"{layout} on {bucket}" for layout in LAYOUTS for bucket in BUCKETS]
# Left to `make torture`: only the layout `tasks` reads versions; the faulty bucket is the one in memory, with faults;
# `one` and `sqlite` make the same requests, for one object, so `one` runs in a folder and `sqlite` on S3.
LATER = (
    *(f"{layout} on folder with versions" for layout in ("one", "sqlite", "log")),
    *(f"{layout} on memory" for layout in LAYOUTS),
    *("one on s3", "sqlite on folder"),
)
TORTURE = bool(os.environ.get("QO_TORTURE"))
PLACES = EVERY if TORTURE else [place for place in EVERY if place not in LATER]
# Histories on one bucket. Each bucket gets others. test_layouts_lost_answers.py runs at least 20 for each layout, with
# faults. `make torture` runs 12 on each bucket.
HISTORIES = 12 if TORTURE else 2
WAYS: dict[str, Layout] = {
    name: layout for name, layout in VARIANTS.items() if name not in LAYOUTS and layout is not EVERYTHING_ASIDE
} | {
    "tasks by their index alone": lambda bucket, clock: ObjectPerTaskEngine(
        bucket, TasksOptions(index_mode=IndexMode.INDEX_ONLY), clock=clock
    ),
    "tasks without their index": lambda bucket, clock: ObjectPerTaskEngine(
        bucket, TasksOptions(index_mode=IndexMode.LOG_SCAN, log_scan_page_size=7), clock=clock
    ),
}


@pytest.mark.parametrize("engine", PLACES, indirect=True)
class TestLayouts(DamagedLayouts, EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
        layout, _, bucket = request.param.partition(" on ")
        self.first_seed = HISTORIES * [*BUCKETS].index(bucket)
        async with BUCKETS[bucket](clock, tmp_path) as place:
            engine = LAYOUTS[layout](place, clock)
            yield engine
            await engine.close()

    @pytest.mark.parametrize("seed", range(HISTORIES))
    async def test_random_histories_are_answered_as_the_model_answers(
        self, engine: Engine, clock: ManualClock, seed: int
    ) -> None:
        await random_history(engine, clock, self.first_seed + seed)


@pytest.mark.parametrize("engine", WAYS, indirect=True)
class TestWays(DamagedLayouts, EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
        async with BUCKETS["memory"](clock, tmp_path) as place:
            engine = WAYS[request.param](place, clock)
            await engine.open()
            yield engine
            await engine.close()

    @pytest.mark.parametrize("seed", range(HISTORIES))
    async def test_random_histories_are_answered_as_the_model_answers(
        self, engine: Engine, clock: ManualClock, seed: int
    ) -> None:
        await random_history(engine, clock, seed)
