"""Writing one object that others write too. Whoever loses a race tries again, often enough to win one.

Those who win need not read before they write again, so they would win for ever. Therefore they leave gaps, long enough
for whoever must read first; and those who have waited longest are the quickest to use one. Whoever is alone need not:
losers ring a bell, an object beside the one they fight for, and who writes without a break listens for it.
"""

import asyncio
from contextlib import suppress

from qo.bucket import ANY, Bucket
from qo.errors import StorageError
from qo.ids import luck
from qo.ids import new_token as new_sound

_PATIENCE, _NEW = 60.0, 10.0  # seconds until a try is given up, and after which one does not rest any more
_SHORTEST = 0.001  # seconds a try is taken to last at least
_REST = 16.0  # tries that would fit into the longest pause of who has just come
_GAP, _LONGEST_GAP = 3.0, 2.0  # how many rounds that read first would fit into a gap; seconds
_TURN = 5.0  # gaps that would fit between two of them
_COMPANY = 30.0  # seconds after the last sign of others
_RING = 5.0  # seconds from one ring to the next


_SILENT = (StorageError, ValueError)  # no answer, no place for a bell, or a key that is too long with it


class ContentionSignal:
    """Where there can be none it is taken to be rung all the time."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, f"{key}.bell"
        self._rung_at = float("-inf")
        self._heard: str | None = None

    async def ring(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._rung_at >= _RING:
            self._rung_at = now
            with suppress(*_SILENT):  # the next loser will
                await self._bucket.put(self._key, new_sound().encode(), expected=ANY)

    async def has_rung(self) -> bool:
        """Since the last look."""
        try:
            blob = await self._bucket.get(self._key)
        except _SILENT:
            return True
        before, self._heard = self._heard, blob.version if blob else None
        return self._heard != before


class WriteAttempts:
    def __init__(self, bell: ContentionSignal) -> None:
        self._bell = bell
        self._loop = asyncio.get_running_loop()
        self._began = self.tried_at = self._loop.time()
        self.was_lost = False  # at least once

    def goes_on(self) -> bool:
        """Another try."""
        self.tried_at = self._loop.time()
        return self.tried_at < self._began + _PATIENCE

    async def lose(self) -> None:
        """This try was lost: whoever won should know that there are others."""
        self.was_lost = True
        await self._bell.ring()

    async def rest(self) -> None:
        """Before the next try, after one that was lost."""
        now = self._loop.time()
        took = max(_SHORTEST, now - self.tried_at)
        await self.lose()
        newness = max(0.0, 1 - (now - self._began) / _NEW)
        await asyncio.sleep(took * _REST * newness * luck())


class WriterFairness:
    """Of one who may write without a break."""

    def __init__(self, bell: ContentionSignal) -> None:
        self._bell = bell
        self._ended = self._turn_began = self._others_until = float("-inf")
        self._takes = 0.0  # seconds, a try of who must read first
        self._race: WriteAttempts | None = None  # the last

    async def begin(self) -> bool:
        """Before a round of writing. True: a gap was left, and others had their chance: read first, as they must."""
        loop = asyncio.get_running_loop()
        gap = min(_LONGEST_GAP, _GAP * self._takes)
        if loop.time() - self._ended >= gap:  # there was one
            self._turn_began = loop.time()
        elif loop.time() - self._turn_began >= _TURN * gap:
            must_wait = await self._has_company()
            if must_wait:
                await asyncio.sleep(gap)
            self._turn_began = loop.time()
            return must_wait
        return False

    async def _has_company(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._others_until and await self._bell.has_rung():
            self._others_until = now + _COMPANY
        return now < self._others_until

    def race(self) -> WriteAttempts:
        self._race = race = WriteAttempts(self._bell)
        return race

    def end(self, *, has_read: bool) -> None:
        self._ended, race = asyncio.get_running_loop().time(), self._race
        if race is not None and race.was_lost:
            self._turn_began = self._ended
            self._others_until = self._ended + _COMPANY
        if race is not None and (race.was_lost or has_read):
            self._takes = self._ended - race.tried_at
