"""What handlers report: log lines and progress, as text that every store accepts."""

import pytest

from qo.errors import InvalidTask
from qo.model import (
    LOG_LIMIT,
    PROGRESS_TEXT_LIMIT,
    Filter,
    NewTask,
    Status,
    Table,
    check_described,
    complete,
    renew,
    storable_log,
    storable_progress_text,
)
from qo.model.life_cycle import NOW, sample
from qo.model.text import MAX_NOTICE_LENGTH, cut_log, dropped_notice


def test_of_a_long_log_the_last_whole_lines_are_kept() -> None:
    lines = [f"line {n} é" for n in range(5000)]
    kept = storable_log("\n".join(lines))
    assert kept is not None and len(kept.encode()) <= LOG_LIMIT
    assert kept.splitlines() == lines[-len(kept.splitlines()) :]
    assert len(kept.encode()) > LOG_LIMIT - 40


def test_of_a_single_long_line_the_end_is_kept() -> None:
    assert storable_log("é" * LOG_LIMIT + "end") == "é" * ((LOG_LIMIT - 3) // 2) + "end"
    assert storable_log("x" * LOG_LIMIT + "\n") == "x" * (LOG_LIMIT - 1) + "\n"


def test_an_empty_log_is_none_and_nul_is_replaced() -> None:
    assert storable_log(None) is storable_log("") is None
    assert storable_log("a\x00b\ud800") == "a?b?"


def test_a_cut_log_begins_with_the_number_of_all_dropped_lines() -> None:
    lines = [f"{number:09}\n" for number in range(10)]
    assert cut_log("".join(lines), 100) == "".join(lines), "it fits"
    room = MAX_NOTICE_LENGTH + 35  # for three of the lines; the fourth is cut
    assert cut_log("".join(lines), room) == "(7 earlier lines not kept)\n" + "".join(lines[-3:])
    counted = dropped_notice(1_000) + "".join(lines)
    assert cut_log(counted, room) == "(1,007 earlier lines not kept)\n" + "".join(lines[-3:])
    assert cut_log("x" * 200, 50) == "x" * 50, "of a single long line the end is kept"


def test_the_text_of_a_progress_report_is_one_short_line() -> None:
    assert storable_progress_text(" resizing \n 3 of\t10 \x00") == "resizing 3 of 10 ?"
    assert storable_progress_text("x" * 500) == "x" * PROGRESS_TEXT_LIMIT
    assert storable_progress_text(None) is storable_progress_text("") is storable_progress_text(" \n") is None


def test_a_text_without_progress_is_not_stored() -> None:
    assert renew(sample(Status.RUNNING), 60.0, progress_text="x").progress_text is None


def test_only_settlements_carry_logs() -> None:
    assert complete(sample(Status.RUNNING), log="x").log == "x"
    assert renew(sample(Status.RUNNING), 60.0).log is None


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "x" * 129, 7])
def test_the_name_of_a_batch_is_checked(name: str) -> None:
    new = NewTask(id="00000000-0000-8000-8000-000000000001", queue="q", type="t", batch=name)
    with pytest.raises(InvalidTask, match="batch"):
        check_described(new, payload_limit=100)


def test_a_batch_may_have_a_long_name() -> None:
    new = NewTask(id="00000000-0000-8000-8000-000000000001", queue="q", type="t", batch="2026-11:a_b." + "x" * 100)
    assert check_described(new, payload_limit=100) is new


def test_a_table_finds_and_counts_the_tasks_of_a_batch() -> None:
    table = Table()
    ids = [f"0000000{n}-0000-8000-8000-000000000000" for n in range(3)]
    table.add([NewTask(id=id, queue="q", type="t", batch=batch) for id, batch in zip(ids, "bcb", strict=True)], NOW)
    assert {task.id for task in table.find(Filter(batch="b"), 9, None, NOW)} == {ids[0], ids[2]}
    assert sum(table.count("b").values()) == 2
    assert sum(table.count().values()) == 3
