"""The priority configuration of docs/http.md, read from a file."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo.codec import parse_json
from qo.errors import InvalidSetting, InvalidTask
from qo.model import PromotionTimes, check_number, check_whole
from qo.web.settings import Level, WebSettings


class Promotion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task is promoted at the moment its time has come, so an interval and a batch size have nothing to set."""

    low_to_medium_seconds: float = 600.0
    medium_to_high_seconds: float = 1200.0
    promotion_interval_seconds: float = 60.0
    promotion_batch_size: int = 100


class PriorityFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    high: Level | None = None
    medium: Level | None = None
    low: Level | None = None
    starvation_prevention: Promotion | None = None
    timeout_growth: float | None = None


def read_priorities(path: Path, settings: WebSettings) -> WebSettings:
    """The settings with what the file says; what it does not say stays."""
    try:
        given = msgspec.convert(parse_json(path.read_bytes(), str(path)), PriorityFile)
        return apply_priorities(given, settings)
    except OSError as error:
        raise InvalidSetting(f"cannot read {path}: {error.strerror or error}") from error
    except (InvalidTask, msgspec.ValidationError) as error:
        raise InvalidSetting(f"{path} is not a priority configuration: {error}") from error


def apply_priorities(given: PriorityFile, settings: WebSettings) -> WebSettings:
    named = {"high": given.high, "medium": given.medium, "low": given.low}
    levels = {name: level for name, level in named.items() if level is not None}
    for name, level in levels.items():
        check_whole(f"{name}.max_retries", level.max_retries)
        check_number(f"{name}.timeout_seconds", level.timeout_seconds, above=0.0)
    changed: dict[str, Any] = {"levels": settings.levels | levels}
    if given.timeout_growth is not None:
        check_number("timeout_growth", given.timeout_growth, above=0.0)
        changed["timeout_growth"] = given.timeout_growth
    if given.starvation_prevention is not None:
        changed["ageing"] = _times(given.starvation_prevention)
    return replace(settings, **changed)


def _times(given: Promotion) -> PromotionTimes:
    check_number("starvation_prevention.low_to_medium_seconds", given.low_to_medium_seconds)
    check_number("starvation_prevention.medium_to_high_seconds", given.medium_to_high_seconds)
    return PromotionTimes(low_to_medium=given.low_to_medium_seconds, medium_to_high=given.medium_to_high_seconds)
