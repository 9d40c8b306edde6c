"""Every layout on every bucket, and every way to set a layout up: one contract."""

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from qo.engine import Engine
from qo.engines.object_per_task import IndexMode, ObjectPerTaskEngine, TasksOptions
from qo.testing import EngineContract, ManualClock, random_history
from qo.testing.engine_add import AddContract, UniquenessContract
from qo.testing.engine_changes import ChangeContract
from qo.testing.engine_claims import ClaimContract, ClockSet, RaceContract
from qo.testing.engine_damage import DamageContract
from qo.testing.engine_groups import FleetLimitContract, GroupContract
from qo.testing.engine_notes import AuditContract, NotesContract
from qo.testing.engine_operations import OperationContract
from qo.testing.engine_order import ClaimOrderContract
from qo.testing.engine_reads import ReadContract
from tests.engines.damage import DamagedLayouts
from tests.engines.layout_buckets import BUCKETS
from tests.engines.layouts import EVERYTHING_ASIDE, LAYOUTS, SLOW_VARIANTS, VARIANTS, Layout

EVERY = [f"{layout} on {bucket}" for layout in LAYOUTS for bucket in BUCKETS]
# Left to `make torture`: only the layout `tasks` reads versions; the faulty bucket is the one in memory, with faults;
# `one` and `sqlite` make the same requests, for one object, so `one` runs in a folder and `sqlite` on S3.
LATER = (
    *(f"{layout} on folder with versions" for layout in ("one", "sqlite", "log")),
    *(f"{layout} on memory" for layout in LAYOUTS),
    *("one on s3", "sqlite on folder"),
)
# Each layout runs the whole contract on one bucket with faults, `tasks` and `one` also in a folder. On other buckets it
# runs the parts that depend on the bucket. `sqlite` and `log` read and write whole objects, whatever is asked of their
# tables. `tasks` also lists keys, and its keys contain ranks, queues and types.
WRITES = (AddContract, OperationContract, ClockSet, AuditContract, NotesContract, RaceContract, DamageContract)
LISTINGS = (*WRITES, ClaimContract, ClaimOrderContract, ReadContract, UniquenessContract)
PARTS = {
    "tasks on folder with versions": LISTINGS,
    "tasks on s3": LISTINGS,
    "sqlite on s3": WRITES,
    "log on folder": WRITES,
    "log on s3": WRITES,
}
# These ways change how `sqlite` commits, how `tasks` finds its tasks, or how `log` stores them, and nothing else.
ALL_BUT_LIMITS = tuple(part for part in EngineContract.__bases__ if part is not FleetLimitContract)
TASKS = (*WRITES, ClaimContract, ClaimOrderContract, GroupContract, ChangeContract, ReadContract, UniquenessContract)
PARTS_OF_WAYS = {
    "sqlite synced behind": WRITES,
    "tasks in small pages": TASKS,
    "tasks by their index alone": TASKS,
    "tasks without their index": TASKS,
    # The history of limits takes four seconds with cold segments.
    **dict.fromkeys(("log in small blocks", "log in cold segments", "log in four shards"), ALL_BUT_LIMITS),
}
TORTURE = bool(os.environ.get("QO_TORTURE"))  # the whole contract everywhere
PLACES = EVERY if TORTURE else [place for place in EVERY if place not in LATER]
# Histories on one bucket. Each bucket gets another. test_layouts_lost_answers.py runs at least 8 for each layout, with
# faults. `make torture` runs 12 on each bucket.
HISTORIES = 12 if TORTURE else 1
WAYS: dict[str, Layout] = {
    name: layout for name, layout in VARIANTS.items() if name not in LAYOUTS and layout is not EVERYTHING_ASIDE
} | (SLOW_VARIANTS if TORTURE else {})
WAYS |= {
    "tasks by their index alone": lambda bucket, clock: ObjectPerTaskEngine(
        bucket, TasksOptions(index_mode=IndexMode.INDEX_ONLY), clock=clock
    ),
    "tasks without their index": lambda bucket, clock: ObjectPerTaskEngine(
        bucket, TasksOptions(index_mode=IndexMode.LOG_SCAN, log_scan_page_size=7), clock=clock
    ),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.function.__name__
    engines = [*_with(name, PLACES, PARTS)] if metafunc.cls is TestLayouts else [*_with(name, WAYS, PARTS_OF_WAYS)]
    metafunc.parametrize("engine", engines, indirect=True)


def _with(name: str, engines: Iterable[str], parts: Mapping[str, tuple[type, ...]]) -> Iterator[str]:
    """The engines that run this test of the contract."""
    for engine in engines:
        if TORTURE or engine not in parts or any(name in vars(part) for part in parts[engine]):
            yield engine


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
