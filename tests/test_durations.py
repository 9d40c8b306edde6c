import pytest

from qo.clock import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("250ms", 0.25), ("1.5 m", 90.0), (".5h", 1800.0), ("2H", 7200.0), ("7d", 604_800.0),
     ("1w", 604_800.0), (" 0 ", 0.0), ("3200000000", 3.2e9)],
)  # fmt: skip
def test_a_duration_is_a_number_with_or_without_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "soon", "-1", "1e3", "nan", "inf", "5 minutes", "1,5m", "1m30s", "²", "٣", "9" * 400, "6000w"],
)
def test_other_text_and_centuries_are_no_durations(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize("seconds", [0.0, 1e-05, 0.1, 30.0, 2_592_000.0, 1_000_001.0, 3.2e9, 1 / 3])
def test_the_text_of_a_duration_is_parsed_to_the_same_number(seconds: float) -> None:
    assert parse_duration(duration_text(seconds)) == seconds
