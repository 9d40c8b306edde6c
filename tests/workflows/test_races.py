"""Processes that act on one workflow at the same time, and die at any request."""

import os

import pytest

from qo.engines.memory import MemoryEngine
from qo.testing.clock import ManualClock
from tests.workflows.race_history import RaceHistory

_HISTORIES = int(os.environ.get("QO_HISTORIES", "8"))
# A worker started a task although its parent had been replayed before: released late, or known as ended.
_FOUND = (193, 301, 484, 509, 587, 710, 1415)


@pytest.mark.parametrize("deadliness", [0.0, 0.01])
async def test_races_between_processes_lose_nothing(deadliness: float) -> None:
    for seed in (*_FOUND, *range(_HISTORIES)):
        clock = ManualClock()
        history = RaceHistory(MemoryEngine(clock), clock, seed, size=6, deadliness=deadliness)
        try:
            await history.race(processes=4, steps=30)
        except* AssertionError as errors:  # a process that fails raises it in a group
            raise AssertionError(f"seed {seed}, deadliness {deadliness}: {errors.exceptions}") from errors
