"""Writing one object that others write too. Whoever loses a race tries again, often enough to win one.

Those who win need not read before they write again, so they would win for ever. Therefore they leave gaps, long enough
for whoever must read first; and those who have waited longest are the quickest to use one.
"""

import asyncio

from qo.ids import luck

_PATIENCE, _NEW = 60.0, 10.0  # seconds until a try is given up, and after which one does not rest any more
_SHORTEST = 0.001  # seconds a try is taken to last at least
_REST = 16.0  # tries that would fit into the longest pause of who has just come
_GAP, _LONGEST_GAP = 3.0, 2.0  # how many rounds that read first would fit into a gap; seconds
_TURN = 5.0  # gaps that would fit between two of them


class Race:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self.tried_at = self._loop.time()
        self.was_lost = False  # at least once

    def goes_on(self) -> bool:
        """Another try."""
        self.tried_at = self._loop.time()
        return self.tried_at < self._began + _PATIENCE

    async def rest(self) -> None:
        """This try was lost."""
        now, self.was_lost = self._loop.time(), True
        took = max(_SHORTEST, now - self.tried_at)
        newness = max(0.0, 1 - (now - self._began) / _NEW)
        await asyncio.sleep(took * _REST * newness * luck())


class Manners:
    """Of one who may write without a break."""

    def __init__(self) -> None:
        self._ended = self._turn_began = float("-inf")
        self._takes = 0.0  # seconds, a try of who must read first
        self._race: Race | None = None  # the last

    async def begin(self) -> bool:
        """Before a round of writing. True: a gap was left, and others had their chance: read first, as they must."""
        loop = asyncio.get_running_loop()
        gap = min(_LONGEST_GAP, _GAP * self._takes)
        if loop.time() - self._ended >= gap:  # there was one
            self._turn_began = loop.time()
        elif loop.time() - self._turn_began >= _TURN * gap:
            await asyncio.sleep(gap)
            self._turn_began = loop.time()
            return True
        return False

    def race(self) -> Race:
        self._race = race = Race()
        return race

    def end(self, *, has_read: bool) -> None:
        self._ended, race = asyncio.get_running_loop().time(), self._race
        if race is not None and race.was_lost:
            self._turn_began = self._ended
        if race is not None and (race.was_lost or has_read):
            self._takes = self._ended - race.tried_at
