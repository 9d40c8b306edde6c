"""Durations as text: options of the command line, environment variables and URLs."""

import re
from decimal import Decimal

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|[smhdw]?)", re.ASCII)
_LONGEST = 3.2e9  # seconds: a hundred years, as in the model


def parse_duration(text: str) -> float | None:
    """Seconds from `90`, `90s`, `5m`, `2h` or `7d`. None if the text is not a duration, or longer than a century."""
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found else None
    return seconds if seconds is not None and seconds <= _LONGEST else None


def duration_text(seconds: float) -> str:
    """Text from which `parse_duration` reads exactly this number, which is never in scientific notation."""
    return f"{Decimal(repr(float(seconds))):f}"
