"""Mistakes that the layout `log` could contain, one replacement each, and the test that must notice it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from qo.engines.replicated_log import catch_up, compaction, garbage, record_store, submission_batch, tail_proof
from qo.engines.replicated_log.checkpoint import CheckpointStore, DamagedCheckpoint, LogCheckpoint, StoredCheckpoint
from qo.engines.replicated_log.record_store import LogRecord
from qo.sqlite_tables import patchsets
from qo.sqlite_tables.table import SqliteTable


class Mutant(NamedTuple):
    place: Any  # a module or a class
    name: str
    replacement: Any
    killed_by: str  # a test, below tests/


async def _nothing(*_: object, **__: object) -> None:
    return


async def _end(_: object, __: int, end: int, ___: object) -> int:
    return end


async def _delete_first(self: garbage.LogGarbage) -> int:
    """Delete what the next floor will allow, and move the floor afterwards."""
    store, move = self._checkpoints, garbage.LogGarbage.move_floor
    moved: list[LogCheckpoint] = []
    write = store.change

    async def later(how: Callable[[LogCheckpoint], LogCheckpoint]) -> LogCheckpoint:
        moved.append(how(await store.read()))
        return moved[-1]

    store.change = later  # type: ignore[method-assign]
    checkpoint = await move(self)
    store.change = write  # type: ignore[method-assign]
    for key in await self._records_below(checkpoint.floor):
        await self._bucket.delete(key)
    if moved:
        await store.change(lambda current: current.with_floor(moved[-1].floor))
    return 0


async def _read_or_new(self: CheckpointStore) -> StoredCheckpoint:
    try:
        return await _load(self)
    except DamagedCheckpoint:
        return StoredCheckpoint(LogCheckpoint(), "", 0.0)


_load = CheckpointStore.load


def _ingest_without_cursor(self: submission_batch.SubmissionBatch, table: SqliteTable, now: float) -> None:
    for number, found in self.waiting.items():
        table.add(found.tasks, now)
        self.consumed.append(number)


def _merged_in_reverse(records: list[LogRecord]) -> LogRecord:
    merged = _merge(records)
    return merged._replace(patchset=patchsets.merge_patchsets(record.patchset for record in reversed(records)))


_merge = compaction.merge_records
_FLOOR, _COMMITS = "engines/test_log_floor.py::", "engines/test_log_commits.py::"

MUTANTS = {
    "the floor is never checked": Mutant(
        catch_up.CatchUp,
        "check_floor",
        _nothing,
        f"{_FLOOR}test_a_writer_asleep_past_garbage_collection_does_not_acknowledge",
    ),
    "a missing record is the end of the log": Mutant(
        catch_up.CatchUp, "check_floor", _nothing, f"{_FLOOR}test_a_reader_asleep_past_garbage_collection_reloads"
    ),
    "only the clocks raise doubts": Mutant(
        tail_proof.TailProof,
        "reset",
        lambda _: None,
        f"{_FLOOR}test_a_frozen_writer_whose_clocks_stood_still_does_not_acknowledge",
    ),
    "records are deleted before the floor has moved": Mutant(
        garbage.LogGarbage, "collect", _delete_first, f"{_FLOOR}test_a_floor_moves_before_anything_is_deleted"
    ),
    "the floor may move back": Mutant(
        LogCheckpoint,
        "with_floor",
        lambda self, floor: replace(self, floor=floor),
        f"{_FLOOR}test_a_slow_collector_does_not_move_the_floor_back",
    ),
    "every record is old": Mutant(
        garbage.LogGarbage,
        "_last_old",
        _end,
        f"{_FLOOR}test_a_garbage_collector_with_a_wrong_clock_deletes_nothing_young",
    ),
    "a missing checkpoint is a new log": Mutant(
        CheckpointStore, "load", _read_or_new, f"{_FLOOR}test_a_missing_checkpoint_is_damage_not_a_new_log"
    ),
    "an unreadable record is another's": Mutant(
        record_store,
        "_is_ours",
        lambda *_: False,
        f"{_COMMITS}test_a_damaged_read_back_of_an_own_record_is_not_a_lost_race",
    ),
    "records are merged in reverse order": Mutant(
        compaction,
        "merge_records",
        _merged_in_reverse,
        "engines/test_log_simulation.py::test_nothing_is_lost_and_nothing_happens_twice",
    ),
    "submissions have no cursor": Mutant(
        submission_batch.SubmissionBatch,
        "ingest",
        _ingest_without_cursor,
        "engines/test_log_submissions.py::test_a_late_duplicate_after_consumption",
    ),
}


def run_tests(mutant: str, *tests: str) -> int:
    """The exit code of pytest with a mutant in place, or with none."""
    if mutant:
        place, name, replacement, _ = MUTANTS[mutant]
        setattr(place, name, replacement)
    return pytest.main([*tests, "-q", "-x", "-n0", "-p", "no:cacheprovider"])
