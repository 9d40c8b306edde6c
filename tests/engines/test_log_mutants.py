"""Each mistake of log_mutants.py makes its test fail: the tests of the layout `log` notice what they are about."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.log_mutants import MUTANTS

ROOT = Path(__file__).parents[2]
_QUICK = ("only the clocks raise doubts", "an unreadable record is another's")
NAMES = list(MUTANTS) if os.environ.get("QO_TORTURE") else _QUICK

_HISTORIES = "2"  # of each simulated world, also in `make torture`: a thousand take an hour


def run(*tests: str, mutant: str = "") -> int:
    """Run pytest in a process of its own: within this one it would replace the timers and hooks of this run."""
    code = "import sys; from tests.engines.log_mutants import run_tests; sys.exit(run_tests(*sys.argv[1:]))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "QO_TORTURE"))}
    environment["QO_HISTORIES"] = _HISTORIES
    command = [sys.executable, "-c", code, mutant, *(str(ROOT / "tests" / test) for test in tests)]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL).returncode


@pytest.mark.timeout(300)
def test_without_a_mutant_all_tests_pass() -> None:
    assert run(*{MUTANTS[name].killed_by for name in NAMES}) == pytest.ExitCode.OK


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_each_mutant_is_killed(name: str) -> None:
    assert run(MUTANTS[name].killed_by, mutant=name) == pytest.ExitCode.TESTS_FAILED
