"""Time in tests: a clock that only the test advances, and an event loop that jumps to the next timer."""

import asyncio
import random
import selectors
from collections.abc import Coroutine
from typing import Any, Never, TypeVar


class ManualClock:
    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


T = TypeVar("T")


def simulate(work: Coroutine[Any, Any, T], seed: int) -> T:
    """Run a coroutine to its end. The seed determines the order of its steps, so threads are not allowed."""
    loop = _SimulatedLoop(seed)
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


class _SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self, seed: int) -> None:
        self._instant = 0.0
        self._dice = random.Random(seed)  # noqa: S311 - repeatable random numbers
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._instant

    def leap(self, seconds: float) -> None:
        self._instant += seconds

    def run_in_executor(self, *_: Any) -> Never:  # type: ignore[override]
        raise RuntimeError("threads cannot be simulated: the seed does not determine their order")

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        for place in range(len(ready) - 1, 0, -1):
            other = self._dice.randrange(place + 1)
            ready[place], ready[other] = ready[other], ready[place]
        super()._run_once()  # type: ignore[misc]


class _Selector(selectors.SelectSelector):
    """Advances the time of the loop instead of waiting."""

    def __init__(self, loop: _SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: no callback is ready, and there is no timer")
        if timeout > 0:
            self._loop.leap(timeout)
        return []
