"""A handler that buffers the log of a server."""

import asyncio
import logging
import sys

_FLUSH_INTERVAL = 0.1  # seconds
_MAX_BUFFERED_LINES = 500


class BufferedLogHandler(logging.Handler):
    """Writes the lines of 0.1 s at once. A warning is written immediately, and the rest at exit.

    A write per line releases the GIL each time, and a busy server spent a third of its time reacquiring it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))
        if record.levelno >= logging.WARNING or len(self._lines) >= _MAX_BUFFERED_LINES:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()

    async def run(self) -> None:
        while True:
            self.flush()
            await asyncio.sleep(_FLUSH_INTERVAL)


def buffer_logs() -> BufferedLogHandler:
    """Replace the handlers that write each line; keep their format.

    The lines do not show the thread, the process and the line of code, so these are not looked up: a server logs two
    lines for each submitted task. The process runs no code of others, which might want them.
    """
    logging._srcfile = None  # noqa: SLF001 - documented in the HOWTO of logging
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    log = logging.getLogger("qo")
    buffered = BufferedLogHandler()
    if log.handlers:
        buffered.setFormatter(log.handlers[0].formatter)
    log.handlers[:] = [buffered]
    return buffered
