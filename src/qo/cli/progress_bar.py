"""A bar on stderr for operations that take long, such as loading a queue. It disappears when they end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from qo.progress import SHOW

if TYPE_CHECKING:
    from rich.progress import Progress


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
