"""Writing one object that others write too. Whoever loses a race tries again, often enough to win one.

Pauses that only grow would starve a newcomer: those who win need not even read, and go on at once. So a pause is
measured by what a try takes, and never becomes much longer than that.
"""

import asyncio

from qo.ids import luck

_PATIENCE = 60.0  # seconds
_SHORTEST = 0.001  # seconds a try is taken to last at least
_MOST = 8  # tries that would fit into the longest pause
# How many rounds are preceded by a gap, and how many rounds would fit into it. Whoever must read thousands of tasks
# before it writes needs as long as seven rounds of one who need not.
_GAPS, _GAP = 1 / 48, 9.0


class Race:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + _PATIENCE
        self._tried_at = 0.0
        self._width = 1

    def goes_on(self) -> bool:
        """Another try."""
        self._tried_at = self._loop.time()
        return self._tried_at < self._ends

    async def rest(self) -> None:
        """This try was lost."""
        took = max(_SHORTEST, self._loop.time() - self._tried_at)
        self._width = min(2 * self._width, _MOST)
        await asyncio.sleep(took * self._width * luck())


class Manners:
    """Who writes without a break leaves a gap now and then: else no other could ever read and write in time."""

    def __init__(self) -> None:
        self._ended_at = self._took = 0.0

    async def begin(self) -> float:
        """Before a round of writing; gives the instant to end it with."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._ended_at < self._took and luck() < _GAPS:
            await asyncio.sleep(_GAP * self._took)
        return loop.time()

    def end(self, began: float) -> None:
        self._ended_at = asyncio.get_running_loop().time()
        self._took = self._ended_at - began
