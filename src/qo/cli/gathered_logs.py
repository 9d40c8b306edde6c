"""A log that writes what came within a moment in one go.

A write for each line lets go of the interpreter each time, and a busy server waits a third of its time to get it back.
"""

import asyncio
import logging
import sys

MOMENT = 0.1  # seconds
_MOST = 500  # lines


class GatheredHandler(logging.Handler):
    """Lines wait for the next moment, unless one of them is a warning. What waits is written at exit."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))
        if record.levelno >= logging.WARNING or len(self._lines) >= _MOST:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()

    async def run(self) -> None:
        while True:
            self.flush()
            await asyncio.sleep(MOMENT)


def gather_logs() -> GatheredHandler:
    """In place of the handlers that write line by line; as they format."""
    log = logging.getLogger("qo")
    gathered = GatheredHandler()
    if log.handlers:
        gathered.setFormatter(log.handlers[0].formatter)
    log.handlers[:] = [gathered]
    return gathered
