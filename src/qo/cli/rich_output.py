"""Output with colours and tables. Data from tasks is escaped, so that it cannot control the terminal."""

import sys
from collections.abc import Iterable
from typing import IO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from qo.cli.output import clean, escape
from qo.model import Status

STYLES = {
    Status.PENDING: "blue",
    Status.RUNNING: "yellow",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "magenta",
    Status.ARCHIVED: "dim",
}
_PIPE_WIDTH = 240  # columns if stdout is not a terminal: enough for whole ids
_WIDTHS = {"id": 36, "status": 9, "at": 19, "ago": 4, "failure": 12}


class SafeConsole(Console):
    """Escapes the characters that control a terminal in everything it prints."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            yield segment if segment.control or (text.isascii() and text.isprintable()) else _escaped(segment)


def _escaped(segment: Segment) -> Segment:
    return segment._replace(text=escape(segment.text))


def console(stream: IO[str] | None = None) -> Console:
    """A console on stdout, or on `stream`. It interprets no markup, so data is printed literally."""
    stream = stream or sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return SafeConsole(file=stream, markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


def data(text: object, style: str = "") -> Text:
    """Data from a user, on one line."""
    return Text(clean(str(text)), style=style)


def status_text(status: Status | str) -> Text:
    return Text(str(status), style=STYLES[Status(status)])


def table(*columns: str, title: str | None = None, right: Iterable[str] = ()) -> Table:
    """An empty table. In a narrow window, ids, statuses and times keep their width and the other columns shrink."""
    empty = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
        show_edge=False,
    )
    for column in columns:
        empty.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=True,
            min_width=_WIDTHS.get(column),
        )
    return empty


def bar(share: float, width: int, style: str) -> Text:
    """A bar of `width` cells, filled to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return Text("█" * full + ("" if not part else "▏▎▍▌▋▊▉"[part - 1]), style=style)
