"""Texts: numbers with their nouns, and texts that are too long for a store."""

import pytest

from qo.model import cut_middle, plural
from qo.model.text import unknown_options


def test_a_short_text_is_kept() -> None:
    assert cut_middle("é" * 50, 100) == "é" * 50


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    cut = cut_middle("begin" + "é" * 1000 + "end", 101)
    assert cut.startswith("beginé") and cut.endswith("éend") and "... (cut) ..." in cut
    assert len(cut.encode()) <= 101


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 tasks"), (1, "1 task"), (2000, "2,000 tasks"), (0.5, "0.5 tasks"), (1.0, "1 task"), (3.0, "3 tasks")],
)
def test_one_has_a_singular(number: float, text: str) -> None:
    assert plural(number) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["queue"], ""),
        (["queeue"], "there is no option 'queeue'; did you mean 'queue'?"),
        (["zebra", "colour"], "there is no option 'colour'; the options are: queue, timeout"),
    ],
)
def test_an_unknown_option_is_named_with_what_may_be_meant(given: list[str], text: str) -> None:
    assert unknown_options(given, ("timeout", "queue")) == text
