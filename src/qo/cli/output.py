"""Output as text and JSON, escaped so that data from tasks cannot control the terminal, and a progress bar."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from qo.reports import SHOW
from qo.safe_text import clean_lines, escape, escape_json

if TYPE_CHECKING:
    from rich.progress import Progress

_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "m"))
_SHORTEST = 0.0005  # seconds; less is shown as 0 ms


def shorten(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def as_json(value: Any) -> str:
    return escape_json(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def compact(value: Any) -> str:
    return escape_json(json.dumps(value, ensure_ascii=False, allow_nan=False))


def age(seconds: float) -> str:
    """An age in one unit: 12ms, 3s, 5m, 2h, 7d."""
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    size, unit = next((pair for pair in _UNITS if seconds >= pair[0]), (1.0, "s"))
    return f"{int(seconds // size)}{unit}"


def duration(seconds: float | None) -> str:
    """Seconds as readable text: 12 ms, 3.2 s, 5 m 3 s, 2 h 5 m."""
    if seconds is None:
        return ""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < _SHORTEST:
        return "0 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _UNITS[-1][0]:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    return _in_units(seconds)


def _in_units(seconds: float) -> str:
    (size, unit), rest = next((pair, seconds % pair[0]) for pair in _UNITS if seconds >= pair[0])
    smaller = {"d": (3600.0, "h"), "h": (60.0, "m"), "m": (1.0, "s")}[unit]
    number = int(rest // smaller[0])
    return f"{int(seconds // size)} {unit}" + (f" {number} {smaller[1]}" if number else "")


def echo(text: str, *, err: bool = False) -> None:
    """Print text with the characters that control a terminal escaped."""
    click.echo(escape(text), err=err)


def confirm(question: str, *, abort: bool = False) -> bool:
    """Ask on stderr. Raises click.Abort on Ctrl-C, and with `abort` if the answer is no."""
    try:
        return click.confirm(question, abort=abort, err=True)
    except click.Abort:
        click.echo(err=True)  # the error that follows begins on its own line
        raise


def print_json_error(message: str, **more: object) -> None:
    click.echo(as_json({"error": message} | {key: value for key, value in more.items() if value}), err=True)


def print_error(message: str) -> None:
    from rich.text import Text  # noqa: PLC0415 - rarely needed, and the import takes 30 ms

    from qo.cli.rich_output import console  # noqa: PLC0415 - as above

    console(sys.stderr).print(Text.assemble(("error: ", "bold red"), clean_lines(message)), soft_wrap=True)


@contextmanager
def shown_progress(stream: IO[str] | None = None) -> Iterator[None]:
    """Draw the progress of what runs in this context, if the stream is a terminal."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield
        return
    bar = ProgressBar(stream)
    token = SHOW.set(bar.draw)
    try:
        yield
    finally:
        SHOW.reset(token)
        bar.clear()


class ProgressBar:
    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._drawn: Progress | None = None

    def draw(self, operation: str, done: int, total: int) -> None:
        if done >= total:
            self.clear()
            return
        if self._drawn is None:
            self._drawn = _new_bar(self._stream)
            self._drawn.add_task(operation, total=total, completed=done)
            self._drawn.start()
        self._drawn.update(self._drawn.task_ids[0], description=operation, completed=done, total=total)

    def clear(self) -> None:
        """Remove the bar, so that the output begins in an empty line."""
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None


def _new_bar(stream: IO[str]) -> "Progress":
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415 - rarely needed

    from qo.cli.rich_output import console  # noqa: PLC0415 - as above

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    return Progress(*columns, console=console(stream), transient=True)
