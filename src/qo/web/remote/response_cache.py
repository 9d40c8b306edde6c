"""Responses of the last minute. A client repeats a write whose response was lost, and gets the same response."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from litestar.datastructures import State

from qo.clock import Clock, boot_clock

MAX_AGE = 60.0  # seconds
MAX_RESPONSES, MAX_BYTES = 20_000, 64 * 1024 * 1024
MAX_RESPONSE = 1024 * 1024  # bytes; a larger response is a claim, which the store itself can repeat


class _Known(NamedTuple):
    at: float
    answer: asyncio.Future[bytes]


class ResponseCache:
    """The cache of one server process. Other processes respond that they have no cached response."""

    def __init__(self, clock: Clock = boot_clock) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}  # oldest first
        self._bytes = 0

    async def once(self, name: str, work: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """Run `work` unless it ran or runs under this name. Returns the response and whether it was cached."""
        self._tidy()
        known = self._known.get(name)
        if known is not None:
            return await asyncio.shield(known.answer), True
        answer = asyncio.ensure_future(work())
        self._known[name] = _Known(self._clock(), answer)
        answer.add_done_callback(lambda done: self._done(name, done))
        return await asyncio.shield(answer), False  # the work continues if the caller disconnects

    def _done(self, name: str, answer: "asyncio.Future[bytes]") -> None:
        if answer.cancelled() or answer.exception() is not None or len(answer.result()) > MAX_RESPONSE:
            self._known.pop(name, None)  # a repeat runs the work again
        else:
            self._bytes += len(answer.result())

    def _tidy(self) -> None:
        old = self._clock() - MAX_AGE
        while self._known:
            name, known = next(iter(self._known.items()))
            if known.at > old and len(self._known) <= MAX_RESPONSES and self._bytes <= MAX_BYTES:
                return
            if not known.answer.done():
                return
            del self._known[name]
            self._bytes -= len(known.answer.result())


def answers(state: State) -> ResponseCache:
    """The cache of the application, created on first use."""
    found: ResponseCache | None = state.get("answers")
    if found is None:
        found = state["answers"] = ResponseCache()
    return found
