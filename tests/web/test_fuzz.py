"""Hostile input never gets a 5xx (P14): a taste of each operation. `python -m tests.web.fuzz` has thousands."""

from qo.engines.memory import MemoryEngine
from tests.web.fuzz import Fuzz
from tests.web.serving import served


def test_whatever_comes_no_answer_is_a_server_error():
    with served(MemoryEngine()) as api:
        fuzz = Fuzz(api.url, cases=400, seconds=90.0, seed=20260101, at_a_time=6)
        fuzz.run()
    assert not [status for status in fuzz.statuses if status >= 500]
    assert len(fuzz.statuses) > 3 and sum(fuzz.statuses.values()) >= 400, fuzz.statuses
