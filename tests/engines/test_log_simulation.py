"""The layout `log` in a simulated world: races, lost and late requests, sleepers, deaths, compactors and producers.

`QO_HISTORIES=1000 pytest tests/engines/test_log_simulation.py` runs a thousand; `make torture` does so.
"""

import os
import threading

import pytest

from qo.engines.replicated_log import LogOptions
from qo.ids import new_token, random_fraction
from qo.testing.clock import simulate
from tests.engines.log_world import COLD, OPTIONS, live, seeded

TORTURE = int(os.environ.get("QO_TORTURE", "0"))
HISTORIES = int(os.environ.get("QO_HISTORIES") or 100 * TORTURE or 1)
SECONDS = 100.0  # of simulated time
IS_SHORT = not TORTURE and not os.environ.get("QO_HISTORIES")
WORLDS = {
    "1": (1, OPTIONS, SECONDS),
    "3": (3, OPTIONS, SECONDS),
    "cold": (1, COLD, SECONDS),
    "cold in 3": (3, COLD, 10.0 if IS_SHORT else SECONDS),
}
_BLOCK = 10


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("shards", "options", "seconds"), WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("first", range(0, HISTORIES, _BLOCK))
def test_nothing_is_lost_and_nothing_happens_twice(
    first: int, shards: int, options: LogOptions, seconds: float
) -> None:
    for seed in range(first, min(first + _BLOCK, HISTORIES)):
        try:
            with seeded(seed) as dice:
                simulate(live(dice, seconds=seconds, shards=shards, options=options), seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_seed_repeats_a_history() -> None:
    """Also while another thread draws ids, as those of servers and clients of other tests do."""
    stored, is_over = [], threading.Event()

    def draw() -> None:
        while not is_over.wait(0.001):
            new_token()
            random_fraction()

    other = threading.Thread(target=draw)
    other.start()
    try:
        for _ in range(2):
            with seeded(1) as dice:
                stored.append(simulate(live(dice, seconds=15.0), 1).store.changes)
    finally:
        is_over.set()
        other.join()
    assert stored[0] == stored[1]
