"""Fairness between processes that write one object with compare-and-set.

The winner of a race can write again without reading, so it would win every time. Writers therefore pause for long
enough that a reader can complete a read-modify-write cycle, and contenders that have waited longest retry soonest. A
writer without contenders does not pause: a loser writes a signal object next to the contended one, and a busy writer
polls it. The signal contains how long an attempt of the loser takes: a distant process needs longer gaps than a nearby
one, and a process that has waited long requests longer ones. All writers poll each second and leave such a gap
immediately, so their long gaps overlap.
"""

import asyncio
from contextlib import suppress

from qo.bucket import ANY, Blob, Bucket
from qo.errors import StorageError
from qo.ids import new_token, random_fraction

_RETRY_DEADLINE = 60.0
_BACKOFF_PERIOD = 10.0  # the back-off of a contender shrinks to 0 within this time
_MIN_ATTEMPT_DURATION = 0.001
_BACKOFF_FACTOR = 16.0  # a new contender backs off for up to 16 times the duration of one attempt
_MAX_BACKOFF = 1.0  # seconds; on a busy machine one attempt may take seconds, and a process that sleeps cannot win
_GAP_FACTOR, _MAX_GAP = 3.0, 2.0  # a gap lasts three read-modify-write cycles of the writer, up to 2 s
_SIGNALLED_FACTOR = 2.0  # or two attempts of a loser: the one begun before the gap fails, and the next succeeds
_MAX_SIGNALLED = 3.0  # seconds of an attempt that count
_WAITED_FACTOR = 0.1  # a loser that has waited for longer than _BACKOFF_PERIOD signals at least a tenth of that time
_WRITING_FACTOR = 5.0  # a writer writes for at least five gaps before the next gap
_SIGNALLED_WRITING_FACTOR = 2.0  # or two gaps, if a loser requested their length, so that several losers get their turn
_POLL_INTERVAL = 1.0  # or five gaps of a writer that knows of no contenders, if they are longer
_FIRST_POLL_DELAY = 4.0  # seconds after a pause: an idle process writes some heartbeats within 2 s
_CONTENTION_TIMEOUT = 10.0  # after the last conflict or signal; a loser repeats its signal every 5 s
_SIGNAL_INTERVAL = 5.0
_GROWTH = 1.5  # growth of the duration of an attempt, after which a loser sends the next signal earlier


_SIGNAL_ERRORS = (StorageError, ValueError)  # the store fails, is read-only, or the key is too long for it


class ContentionSignal:
    """An object that losers of races write. If it cannot be read, contention is assumed."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, f"{key}.contention"
        self._sent_at, self._sent_duration, self._sent = float("-inf"), 0.0, ""  # when, what, and its version
        self._seen: str | None = None  # the version at the last poll
        self._has_polled = False
        self._durations: list[tuple[float, float]] = []  # of attempts of losers, and when they were read

    @property
    def attempt_duration(self) -> float:
        """The longest duration that was signalled recently. The last signal may be from a nearby loser."""
        now = asyncio.get_running_loop().time()
        self._durations = [found for found in self._durations if now - found[1] < _CONTENTION_TIMEOUT]
        return max((duration for duration, _ in self._durations), default=0.0)

    async def send(self, attempt_duration: float) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._sent_at >= _SIGNAL_INTERVAL or attempt_duration > _GROWTH * self._sent_duration:
            self._sent_at, self._sent_duration = now, attempt_duration
            with suppress(*_SIGNAL_ERRORS):  # another loser sends one
                stored = await self._bucket.get(self._key)
                if stored is None or stored.version == self._sent or self._replaces(stored, attempt_duration):
                    content = f"{new_token()} {attempt_duration:.3f}"
                    self._sent = await self._bucket.put(self._key, content.encode(), expected=ANY)

    async def was_sent(self) -> bool:
        """Whether another process has sent a signal since the last call."""
        try:
            blob = await self._bucket.get(self._key)
        except _SIGNAL_ERRORS:
            return True
        before, self._seen = self._seen, blob.version if blob else None
        is_first, self._has_polled = not self._has_polled, True
        is_own = self._seen == self._sent
        if blob is None or self._seen == before or is_own or (is_first and self._age(blob) > _CONTENTION_TIMEOUT):
            return False
        self._durations.append((_duration(blob.data), asyncio.get_running_loop().time()))
        return True

    def _replaces(self, stored: Blob, attempt_duration: float) -> bool:
        """Whether to replace the signal of another loser. One that needs longer gaps sends it every 5 s."""
        return self._age(stored) > _SIGNAL_INTERVAL or _duration(stored.data) < attempt_duration

    def _age(self, signal: Blob) -> float:
        return self._bucket.now() - signal.written_at


def _duration(signal: bytes) -> float:
    """The duration of an attempt that a signal contains: 0 if it contains none, as those of earlier versions."""
    with suppress(ValueError):
        duration = float(signal.partition(b" ")[2])
        return min(duration, _MAX_SIGNALLED) if duration > 0 else 0.0
    return 0.0


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
        await self._signal.send(self.signalled_duration())

    def signalled_duration(self) -> float:
        """How long an attempt takes; longer, if the writer has waited for long."""
        now = self._loop.time()
        waited = now - self._began
        share = _WAITED_FACTOR * waited if waited > _BACKOFF_PERIOD else 0.0
        return max(now - self.attempted_at, share)

    async def back_off(self) -> None:
        """Report a conflict, and sleep before the next attempt."""
        now = self._loop.time()
        duration = max(_MIN_ATTEMPT_DURATION, now - self.attempted_at)
        await self.report_conflict()
        newness = max(0.0, 1 - (now - self._began) / _BACKOFF_PERIOD)
        factor, self._factor = self._factor, min(2 * self._factor, _BACKOFF_FACTOR)
        await asyncio.sleep(min(_MAX_BACKOFF, duration * factor) * newness * random_fraction())


class WriterFairness:
    """Makes a busy writer leave gaps for contenders."""

    def __init__(
        self,
        signal: ContentionSignal,
        *,
        first_backoff: float = _BACKOFF_FACTOR,
        gap_factor: float = _GAP_FACTOR,
        writing_factor: float = _WRITING_FACTOR,
        first_poll_delay: float = _FIRST_POLL_DELAY,
    ) -> None:
        """`first_backoff`: the longest back-off after the first conflict of a write, in attempts; it doubles.

        `gap_factor`: the duration of a gap, in read-modify-write cycles.
        `writing_factor`: the time between two gaps, in gaps.
        `first_poll_delay`: seconds from the first write after a pause to the first poll of the signal.
        """
        self._writing_factor, self._first_poll_delay = writing_factor, first_poll_delay
        self._signal, self._first_backoff, self._gap_factor = signal, first_backoff, gap_factor
        self._ended = self._writing_since = self._contended_until = self._polled_at = float("-inf")
        self._cycle_duration = 0.0  # of one read-modify-write cycle
        self._attempts: WriteAttempts | None = None  # of the last write
        self._poll: asyncio.Task[None] | None = None

    async def begin(self) -> bool:
        """Call before a write. True: a gap was left, so another process may have written; read before writing."""
        loop, must_wait = asyncio.get_running_loop(), False
        self._start_poll()
        if loop.time() - self._ended < self._gap:  # otherwise the writer was idle for long enough
            if loop.time() - self._writing_since < self._writing_time:
                return False
            must_wait = self._is_contended
            if must_wait:
                await self._leave_gap()
        self._writing_since = loop.time()
        return must_wait

    async def finish(self) -> None:
        """Stop a poll that has not ended."""
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.wait([self._poll])
            self._poll = None  # a poll that has not begun does not end by itself

    @property
    def _gap(self) -> float:
        return max(min(_MAX_GAP, self._own_gap), _SIGNALLED_FACTOR * self._signalled)

    @property
    def _own_gap(self) -> float:
        return self._gap_factor * self._cycle_duration

    @property
    def _signalled(self) -> float:
        """How long an attempt of a contender takes; 0 if there is none."""
        return self._signal.attempt_duration if self._is_contended else 0.0

    @property
    def _writing_time(self) -> float:
        """How long this process writes between two gaps, or until it polls the signal."""
        least = _SIGNALLED_WRITING_FACTOR * self._gap if self._is_contended else _POLL_INTERVAL
        return max(self._writing_factor * min(_MAX_GAP, self._own_gap), least)

    @property
    def _poll_interval(self) -> float:
        return max(_POLL_INTERVAL, self._writing_factor * min(_MAX_GAP, self._own_gap) * (not self._is_contended))

    @property
    def _is_contended(self) -> bool:
        return asyncio.get_running_loop().time() < self._contended_until

    async def _leave_gap(self) -> None:
        gap = self._gap
        await asyncio.sleep(gap)
        # A signal that was read in the meantime may request a longer gap.
        await asyncio.sleep(max(0.0, self._gap - gap))

    def _start_poll(self) -> None:
        """Read the signal concurrently with the next writes, because a writer without contenders must not wait for it.

        A writer that already pauses, but for less than the longest gap, polls too: a distant process may need more
        time.
        """
        now = asyncio.get_running_loop().time()
        if now - self._ended >= _MAX_GAP:
            # The first poll follows if it continues to write.
            self._polled_at = now + self._first_poll_delay - self._poll_interval
        if now - self._polled_at >= self._poll_interval and self._poll is None:
            self._polled_at = now
            self._poll = asyncio.get_running_loop().create_task(self._read_signal())

    async def _read_signal(self) -> None:
        try:
            if await self._signal.was_sent():
                if not self._is_contended or _SIGNALLED_FACTOR * self._signal.attempt_duration > self._own_gap:
                    self._writing_since = float("-inf")  # the next write leaves a gap, as those of other writers do
                self._contended_until = asyncio.get_running_loop().time() + _CONTENTION_TIMEOUT
        finally:
            self._poll = None

    def attempts(self) -> WriteAttempts:
        self._attempts = attempts = WriteAttempts(self._signal, self._first_backoff)
        return attempts

    def end(self, *, has_read: bool) -> None:
        self._ended, attempts = asyncio.get_running_loop().time(), self._attempts
        if attempts is not None and attempts.had_conflict:
            self._writing_since = self._ended
            self._contended_until = self._ended + _CONTENTION_TIMEOUT
        # The creator of the object has not read it yet, so its cycle was a write. It must poll the signal anyway.
        if attempts is not None and (attempts.had_conflict or has_read or not self._cycle_duration):
            self._cycle_duration = self._ended - attempts.attempted_at
