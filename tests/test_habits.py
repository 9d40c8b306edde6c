"""Habits of the tests themselves: the numbers below may fall, and must not rise.

A test waits for a condition (`until` and `wait_until` in conditions.py) or lets simulated time pass (fast_time.py). It
uses what is public. `python -m tests.test_habits` lists the lines.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WAIT = {HERE / "conditions.py", HERE / "engines" / "fast_time.py"}
MAX_SLEEPS = 13  # most of them in programs of their own below torture/
MAX_REACH_INS = 8
MAX_LONG_FILES = 0
MAX_LINES = 350


def sources() -> Iterator[tuple[Path, str]]:
    for path in sorted(HERE.rglob("*.py")):
        yield path, path.read_text("utf-8")


def sleeps() -> list[str]:
    """Calls of `sleep`, except those that only let other tasks run."""
    return [
        f"{path.relative_to(HERE)}:{node.lineno}"
        for path, text in sources()
        if path not in WAIT
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and _name(node.func) == "sleep" and not _is_zero(node)
    ]


def reach_ins() -> list[str]:
    """Lines that use a private attribute of another object."""
    found = {
        f"{path.relative_to(HERE)}:{node.lineno}"
        for path, text in sources()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and not _is_own(node.value)
    }
    return sorted(found)


def long_files() -> list[str]:
    return [str(path.relative_to(HERE)) for path, text in sources() if text.count("\n") > MAX_LINES]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_zero(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _is_private(name: str) -> bool:
    is_named_tuple = name in ("_replace", "_asdict", "_fields")
    return name.startswith("_") and not name.startswith("__") and not is_named_tuple and name != "_exit"


def _is_own(value: ast.expr) -> bool:
    return _name(value) in ("self", "cls") or (isinstance(value, ast.Call) and _name(value.func) == "super")


@pytest.mark.parametrize(
    ("count", "most"), [(sleeps, MAX_SLEEPS), (reach_ins, MAX_REACH_INS), (long_files, MAX_LONG_FILES)]
)
def test_habits_do_not_get_worse(count: Callable[[], list[str]], most: int) -> None:
    found = count()
    assert len(found) <= most, found


if __name__ == "__main__":
    for count in (sleeps, reach_ins, long_files):
        print(count.__name__, len(count()), *count(), sep="\n  ")  # noqa: T201
