"""What was answered in the last minute: a write whose answer was lost is repeated, and must be answered alike."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from litestar.datastructures import State

from qo.clock import Clock, boot_clock

KEPT = 60.0  # seconds
MOST, MOST_BYTES = 20_000, 64 * 1024 * 1024
LARGEST = 1024 * 1024  # bytes; a larger answer is a claim of many tasks, and the store itself can repeat a claim


class _Known(NamedTuple):
    at: float
    answer: asyncio.Future[bytes]


class ResponseCache:
    """Of one server process. A client that meets another process is told that nothing is remembered."""

    def __init__(self, clock: Clock = boot_clock) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}  # oldest first
        self._bytes = 0

    async def once(self, name: str, work: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """Do the work, unless it was done (or is being done) under this name; True: it was."""
        self._tidy()
        known = self._known.get(name)
        if known is not None:
            return await asyncio.shield(known.answer), True
        answer = asyncio.ensure_future(work())
        self._known[name] = _Known(self._clock(), answer)
        answer.add_done_callback(lambda done: self._done(name, done))
        return await asyncio.shield(answer), False  # the work goes on though its caller leaves

    def _done(self, name: str, answer: "asyncio.Future[bytes]") -> None:
        if answer.cancelled() or answer.exception() is not None or len(answer.result()) > LARGEST:
            self._known.pop(name, None)  # nothing was done, so a repeat may do it
        else:
            self._bytes += len(answer.result())

    def _tidy(self) -> None:
        old = self._clock() - KEPT
        while self._known:
            name, known = next(iter(self._known.items()))
            if known.at > old and len(self._known) <= MOST and self._bytes <= MOST_BYTES:
                return
            if not known.answer.done():
                return
            del self._known[name]
            self._bytes -= len(known.answer.result())


def answers(state: State) -> ResponseCache:
    """The application's own."""
    found: ResponseCache | None = state.get("answers")
    if found is None:
        found = state["answers"] = ResponseCache()
    return found
