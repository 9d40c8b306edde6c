"""An event loop with simulated time: sleepers wake at once, in order. For tests of back-offs and timeouts."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.jumped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout:
            self.jumped += timeout
        return ready


class _FastLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return 1000.0 + self._jumping.jumped


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_FastLoop) as runner:
        return runner.run(work)


async def pass_time(seconds: float) -> None:
    """Let simulated time pass."""
    await asyncio.sleep(seconds)


def loop_clock() -> float:
    """A wall clock that follows the running loop, so that responses do not age on a slow machine."""
    return 1_800_000_000.0 + asyncio.get_running_loop().time()
