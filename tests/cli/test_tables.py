"""Tables in windows that are narrower than their content."""

import io

import pytest
from rich.console import Console

from qo.cli.rich_output import data, table
from qo.cli.stats import status_table
from qo.model import Status


def printed(rows: object, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(rows)
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


@pytest.mark.parametrize("width", [26, 40, 80])
def test_a_narrow_window_shortens_the_bars_and_no_number(width: int) -> None:
    stats = dict.fromkeys(Status, 0) | {Status.PENDING: 20_000, "pending_kinds": {"ready": 20_000, "scheduled": 0}}
    lines = printed(status_table(stats, width=width), width)
    assert [line.split()[1] for line in lines[:3]] == ["20,000", "20,000", "0"]
    assert "scheduled" in lines[2]
    assert "█" in lines[0]


def test_texts_become_shorter_before_names_and_numbers() -> None:
    rows = table("worker", "text", "started", right=("started",))
    rows.add_row(data("web-1"), data("x" * 100), "1,234,567")
    name, text, number = printed(rows, 30)[-1].split()
    assert (name, text[-1], number) == ("web-1", "…", "1,234,567")
    assert len(printed(rows, 30)) == len(printed(rows, 300))


def test_a_folded_column_keeps_its_whole_text() -> None:
    rows = table("status", "")
    rows.columns[-1].no_wrap, rows.columns[-1].overflow = False, "fold"
    rows.add_row("failed", data("y" * 50))
    assert "".join(printed(rows, 30)).count("y") == 50
