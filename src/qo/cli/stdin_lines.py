"""The lines of stdin, as they arrive."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from io import UnsupportedOperation
from threading import Semaphore, Thread

from qo.errors import InvalidSetting

_READ_SIZE = 1 << 16  # bytes
_LINGER = 0.1  # seconds to wait for more lines after the first, so that a slow program does not cost a write per line
_MAX_CHUNKS = 4  # read ahead while the lines before them are written

_Chunk = list[bytes] | OSError | None  # None: the end
_Chunks = asyncio.Queue[_Chunk]


async def stdin_lines(max_lines: int) -> AsyncIterator[list[bytes]]:
    """Yield lists of at most `max_lines` lines, shortly after their first line has arrived.

    A thread reads them: a read blocks until the program at the other end writes, and a blocked event loop does not
    notice Ctrl-C.
    """
    if sys.stdin is None:
        raise InvalidSetting("stdin is closed")
    chunks, room, loop = _Chunks(), Semaphore(_MAX_CHUNKS), asyncio.get_running_loop()

    def put(chunk: _Chunk) -> None:
        room.acquire()
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    Thread(target=_read, args=(put,), name="qo-stdin", daemon=True).start()
    is_open = True
    while is_open:
        lines: list[bytes] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                while is_open and len(lines) < max_lines:
                    chunk = await chunks.get()
                    room.release()
                    if isinstance(chunk, OSError):
                        raise InvalidSetting(f"cannot read stdin: {chunk.strerror or chunk}") from chunk
                    if not lines:
                        limit.reschedule(loop.time() + _LINGER)
                    lines += chunk or ()
                    is_open = chunk is not None
        for start in range(0, len(lines), max_lines):
            yield lines[start : start + max_lines]


def _read(put: Callable[[_Chunk], None]) -> None:
    """Pass on what arrives. `put` waits while enough was read ahead."""
    with suppress(RuntimeError):  # the event loop has ended
        try:
            for chunk in _chunks():
                put(chunk)
            put(None)
        except OSError as error:
            put(error)


def _chunks() -> Iterator[list[bytes]]:
    """The lines of each read. The last one may have no newline."""
    rest: list[bytes] = []  # the parts of an unfinished line
    read = _reader()
    while data := read():
        *lines, last = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*rest, lines[0]))
            rest.clear()
            yield [line + b"\n" for line in lines]
        rest.append(last)
    if any(rest):
        yield [b"".join(rest)]


def _reader() -> partial[bytes]:
    """A function that reads what has arrived. It does not use the buffer of `sys.stdin`: a thread that is blocked in
    that buffer while the interpreter exits makes the exit fatal.
    """
    buffer = sys.stdin.buffer
    try:
        return partial(os.read, buffer.fileno(), _READ_SIZE)
    except UnsupportedOperation:  # a test replaced stdin
        return partial(buffer.read, _READ_SIZE)
