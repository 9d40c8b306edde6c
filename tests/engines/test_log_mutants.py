"""Each mistake of log_mutants.py makes its test fail: the tests of the layout `log` notice what they are about."""

import os
from pathlib import Path

import pytest

from tests.engines.log_mutants import MUTANTS

ROOT = Path(__file__).parents[2]
_QUICK = ("only the clocks raise doubts", "an unreadable record is another's")
NAMES = list(MUTANTS) if os.environ.get("QO_TORTURE") else _QUICK


def run(*tests: str) -> int:
    options = ("-q", "-x", "-n0", "-p", "no:cacheprovider", "--rootdir", str(ROOT))
    return pytest.main([*(str(ROOT / "tests" / test) for test in tests), *options])


@pytest.mark.timeout(300)
def test_without_a_mutant_all_tests_pass() -> None:
    assert run(*{MUTANTS[name].killed_by for name in NAMES}) == pytest.ExitCode.OK


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_each_mutant_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    monkeypatch.setattr(mutant.place, mutant.name, mutant.replacement)
    assert run(mutant.killed_by) == pytest.ExitCode.TESTS_FAILED
