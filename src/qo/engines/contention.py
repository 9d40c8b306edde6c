"""Fairness between processes that write one object with compare-and-set.

The winner of a race can write again without reading, so it would win every time. Writers therefore pause for long
enough that a reader can complete a read-modify-write cycle, and contenders that have waited longest retry soonest. A
writer without contenders does not pause: a loser writes a signal object beside the contended one, and a busy writer
polls it.
"""

import asyncio
from contextlib import suppress

from qo.bucket import ANY, Bucket
from qo.errors import StorageError
from qo.ids import new_token, random_fraction

_RETRY_DEADLINE = 60.0
_BACKOFF_PERIOD = 10.0  # the back-off of a contender shrinks to 0 within this time
_MIN_ATTEMPT_DURATION = 0.001
_BACKOFF_FACTOR = 16.0  # a new contender backs off for up to 16 times the duration of one attempt
_GAP_FACTOR, _MAX_GAP = 3.0, 2.0  # a gap lasts three read-modify-write cycles, and at most 2 s
_WRITING_FACTOR = 5.0  # a writer writes for at least five gaps before the next gap
_CONTENTION_TIMEOUT = 30.0  # after the last conflict or signal
_SIGNAL_INTERVAL = 5.0


_SIGNAL_ERRORS = (StorageError, ValueError)  # the store fails, is read-only, or the key is too long for it


class ContentionSignal:
    """An object that losers of races write. If it cannot be read, contention is assumed."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, f"{key}.contention"
        self._sent_at = float("-inf")
        self._seen: str | None = None  # the version at the last poll

    async def send(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._sent_at >= _SIGNAL_INTERVAL:
            self._sent_at = now
            with suppress(*_SIGNAL_ERRORS):  # another loser sends one
                await self._bucket.put(self._key, new_token().encode(), expected=ANY)

    async def was_sent(self) -> bool:
        """Whether a signal was sent since the last call."""
        try:
            blob = await self._bucket.get(self._key)
        except _SIGNAL_ERRORS:
            return True
        before, self._seen = self._seen, blob.version if blob else None
        return self._seen != before


class WriteAttempts:
    """The attempts of one operation to write the object."""

    def __init__(self, signal: ContentionSignal, first_factor: float = _BACKOFF_FACTOR) -> None:
        self._signal, self._factor = signal, first_factor
        self._loop = asyncio.get_running_loop()
        self._began = self.attempted_at = self._loop.time()
        self.had_conflict = False

    def may_try(self) -> bool:
        """Start another attempt, if the deadline has not passed."""
        self.attempted_at = self._loop.time()
        return self.attempted_at < self._began + _RETRY_DEADLINE

    async def report_conflict(self) -> None:
        """Signal the winner that it has contenders."""
        self.had_conflict = True
        await self._signal.send()

    async def back_off(self) -> None:
        """Report a conflict, and sleep before the next attempt."""
        now = self._loop.time()
        duration = max(_MIN_ATTEMPT_DURATION, now - self.attempted_at)
        await self.report_conflict()
        newness = max(0.0, 1 - (now - self._began) / _BACKOFF_PERIOD)
        factor, self._factor = self._factor, min(2 * self._factor, _BACKOFF_FACTOR)
        await asyncio.sleep(duration * factor * newness * random_fraction())


class WriterFairness:
    """Makes a writer that could write without a break leave gaps for contenders."""

    def __init__(
        self,
        signal: ContentionSignal,
        *,
        first_backoff: float = _BACKOFF_FACTOR,
        gap_factor: float = _GAP_FACTOR,
    ) -> None:
        """`first_backoff`: the longest back-off after the first conflict of a write, in attempts; it doubles.

        `gap_factor`: the duration of a gap, in read-modify-write cycles.
        """
        self._signal, self._first_backoff, self._gap_factor = signal, first_backoff, gap_factor
        self._ended = self._writing_since = self._contended_until = float("-inf")
        self._cycle_duration = 0.0  # of one read-modify-write cycle
        self._attempts: WriteAttempts | None = None  # of the last write

    async def begin(self) -> bool:
        """Call before a write. True: a gap was left, so another process may have written; read before writing."""
        loop = asyncio.get_running_loop()
        gap = min(_MAX_GAP, self._gap_factor * self._cycle_duration)
        if loop.time() - self._ended >= gap:  # the writer was idle for long enough
            self._writing_since = loop.time()
        elif loop.time() - self._writing_since >= _WRITING_FACTOR * gap:
            must_wait = await self._is_contended()
            if must_wait:
                await asyncio.sleep(gap)
            self._writing_since = loop.time()
            return must_wait
        return False

    async def _is_contended(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._contended_until and await self._signal.was_sent():
            self._contended_until = now + _CONTENTION_TIMEOUT
        return now < self._contended_until

    def attempts(self) -> WriteAttempts:
        self._attempts = attempts = WriteAttempts(self._signal, self._first_backoff)
        return attempts

    def end(self, *, has_read: bool) -> None:
        self._ended, attempts = asyncio.get_running_loop().time(), self._attempts
        if attempts is not None and attempts.had_conflict:
            self._writing_since = self._ended
            self._contended_until = self._ended + _CONTENTION_TIMEOUT
        if attempts is not None and (attempts.had_conflict or has_read):
            self._cycle_duration = self._ended - attempts.attempted_at
