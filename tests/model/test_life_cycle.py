"""The whole life cycle on one page: every step against every status."""

import runpy
from pathlib import Path

import pytest

from qo.model import STATUSES, Guard, Status, life_cycle

PAGE = Path(__file__).parents[2] / "docs" / "life-cycle.md"

TABLE = """
step             pending    running    completed  failed     cancelled  archived
claim            running    -          -          -          -          -
renew            -          running    -          -          -          -
complete         -          completed  -          -          -          -
retry            -          pending    -          -          -          -
give-up          -          failed     -          -          -          -
fail             -          failed     -          -          -          -
reject           failed     -          -          -          -          -
release          -          pending    -          -          -          -
set-apart        -          pending    -          -          -          -
expire           -          pending    -          -          -          -
expire,-last     -          failed     -          -          -          -
cancel           cancelled  cancelled  -          -          -          -
replay           -          -          -          pending    pending    pending
replay-finished  -          -          pending    pending    pending    pending
retry-now        pending    -          -          -          -          -
run-now          pending    -          -          -          -          -
reschedule       pending    -          -          -          -          -
set-priority     pending    -          -          -          -          -
withdraw         cancelled  -          -          -          -          -
unblock          pending    -          -          -          -          -
cancel-child     cancelled  -          -          -          -          -
block-again      -          -          pending    pending    pending    pending
archive          -          -          archived   archived   archived   -
delete           -          -          gone       gone       gone       gone
"""

HEADER, *LINES = [line.split() for line in TABLE.strip().splitlines()]
STEPS = {step.name.replace(" ", "-"): step for step in life_cycle.STEPS}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_each_step_makes_of_each_status_what_the_table_says(line: list[str]) -> None:
    assert [life_cycle.outcome(STEPS[line[0]], status) for status in Status] == line[1:]


def test_the_table_names_every_step_and_every_status() -> None:
    assert HEADER[1:] == [status.value for status in Status]
    assert [line[0] for line in LINES] == list(STEPS)


def test_the_page_in_the_docs_is_the_one_the_code_draws() -> None:
    hint = "docs/life-cycle.md is out of date: python -m qo.model.life_cycle > docs/life-cycle.md"
    assert PAGE.read_text(encoding="utf-8") == life_cycle.render(), hint


def test_running_the_module_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(life_cycle.__file__, run_name="__main__")
    assert capsys.readouterr().out == life_cycle.render()


def test_every_guard_is_explained_and_used() -> None:
    assert set(life_cycle.GUARDS) == set(Guard) == set(STATUSES)
    assert {life_cycle.guard(step) for step in life_cycle.STEPS} == {None, *Guard}


def test_the_page_shows_every_arrow_once() -> None:
    arrows = [line.strip() for line in life_cycle.render().splitlines() if "-->" in line]
    assert "[*] --> pending: add" in arrows
    assert "running --> pending: retry / release / set apart / expire" in arrows
    pairs = [arrow.split(":")[0] for arrow in arrows]
    assert len(pairs) == len(set(pairs))
