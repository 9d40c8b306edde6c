"""Texts that are too long for a store."""

from qo.model import cut_middle


def test_a_short_text_is_kept() -> None:
    assert cut_middle("é" * 50, 100) == "é" * 50


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    cut = cut_middle("begin" + "é" * 1000 + "end", 101)
    assert cut.startswith("beginé") and cut.endswith("éend") and "... (cut) ..." in cut
    assert len(cut.encode()) <= 101
