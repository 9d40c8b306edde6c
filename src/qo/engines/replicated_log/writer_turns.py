"""Turns of the processes that write to one shard.

The winner of a race can write again without reading, so it would win every race. Each record names its writer, so all
processes know the other writers. After its turn of one to three commits, a process pauses for one turn of each writer
that has written less recently. During the pause these writers catch up, so few races are lost, and calls gather for
the next commit. A process that has never won is unknown to the others: after several conflicts it sends the contention
signal.
"""

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from qo.engines.contention import ContentionSignal, WriteAttempts, WriterFairness

_MAX_DISTANCE = 3  # with N writers in turns, each wrote one of the last N records; allow three times as many
# A writer is inactive when it has been silent for six times as long as usual: it has ended, or has little to write.
# After its first record, the usual time is unknown.
_SILENT_INTERVALS, _MAX_SILENCE = 6, 2.0  # seconds
_MIN_ROUNDS = 3  # of turns of all writers, until one of them is inactive
_MIN_WRITERS, _MAX_WRITERS = 2, 256
_MAX_WRITERS_IN_TURNS = 6  # with more writers, turns are slower than races
_FIRST_BACKOFF, _GAP_FACTOR, _WRITING_FACTOR = 0.5, 1.0, 2.0  # with more writers; see WriterFairness
# A turn of N writers is N - 1 commits, up to this number. Only the first commit of a turn needs a read before it. Two
# writers gain less from this than from larger batches.
_MAX_COMMITS = 3
_TURN_FACTOR = 1.2  # of a commit: leaves time to read the new record first
_MAX_TURN = 0.5  # seconds
_SIGNAL_AFTER, _MIN_LOSSES = 0.5, 4  # seconds and conflicts after which a loser sends the contention signal
_POLL_INTERVAL = 3.0  # seconds between two reads of the contention signal
_FIRST_POLL_DELAY = 0.3  # seconds after which a process that begins to write reads the contention signal


class SeenWriter(NamedTuple):
    """What the records of a process say about it."""

    seq: int  # of its last record
    at: float  # when it was written, by the clock of the event loop
    interval: float | None  # the longest time between its last records


class WriterTurns(WriterFairness):
    """Replaces the gaps after lost races, which processes that know each other do not need."""

    def __init__(self, signal: ContentionSignal, process: str) -> None:
        super().__init__(
            signal,
            first_backoff=_FIRST_BACKOFF,
            gap_factor=_GAP_FACTOR,
            writing_factor=_WRITING_FACTOR,
            first_poll_delay=_FIRST_POLL_DELAY,
        )
        self._process = process
        self._seen: OrderedDict[str, SeenWriter] = OrderedDict()  # the most recent writer is last
        self._commits = 0  # of the last writer, since the last record of another one
        self._sending: asyncio.Task[None] | None = None

    def saw(self, writer: str, seq: int, age: float) -> None:
        """Call with each record, in order. `age`: seconds since it was written."""
        is_same = bool(self._seen) and next(reversed(self._seen)) == writer
        self._commits = self._commits + 1 if is_same else 1
        at, before = asyncio.get_running_loop().time() - age, self._seen.get(writer)
        interval = None if before is None else max(at - before.at, (before.interval or 0.0) / 2)
        self._seen[writer] = SeenWriter(seq, at, interval)
        self._seen.move_to_end(writer)
        if len(self._seen) > _MAX_WRITERS:
            self._seen.popitem(last=False)

    def _active(self) -> list[str]:
        """The processes that write continuously, the most recent writer first."""
        now = asyncio.get_running_loop().time()
        if len(self._seen) < _MIN_WRITERS:
            return []
        last = next(reversed(self._seen.values())).seq
        max_silence = max(_MAX_SILENCE, _MIN_ROUNDS * len(self._seen) * self.turn)
        found = list[str]()
        for writer, (seq, at, interval) in reversed(self._seen.items()):
            writers = len(found) + 1
            if last - seq > _MAX_DISTANCE * writers or now - at > max_silence:
                break
            usual = max_silence if interval is None else _SILENT_INTERVALS * interval
            if now - at <= max(usual, _MIN_ROUNDS * writers * self.turn):
                found.append(writer)
        return found

    def _before_us(self) -> int:
        """How many of them have a turn before this process. 0 if there are too many for turns."""
        active = self._active()
        if self._process not in active or len(active) > _MAX_WRITERS_IN_TURNS:
            return 0
        place = active.index(self._process)
        return 0 if place == 0 and self._is_turn_unfinished(active) else len(active) - place - 1

    def _is_turn_unfinished(self, active: list[str]) -> bool:
        """Whether the last writer may commit again before the others."""
        return _MIN_WRITERS <= len(active) <= _MAX_WRITERS_IN_TURNS and self._commits < min(
            len(active) - 1, _MAX_COMMITS
        )

    @property
    def is_crowded(self) -> bool:
        """Whether so many processes write that turns would be slower than races."""
        return len(self._active()) > _MAX_WRITERS_IN_TURNS

    @property
    def _own_gap(self) -> float:
        return super()._own_gap if self.is_crowded else 0.0

    @property
    def _poll_interval(self) -> float:
        return max(super()._poll_interval, _POLL_INTERVAL)

    @property
    def turn(self) -> float:
        """Seconds that a process needs to read what it has missed, and to commit."""
        return min(self._cycle_duration, _MAX_TURN)

    async def begin(self) -> bool:
        has_waited = await super().begin()
        left = self._ended + _TURN_FACTOR * self._before_us() * self.turn - asyncio.get_running_loop().time()
        if left <= 0:
            return has_waited
        await asyncio.sleep(left)
        return True

    async def wait_after_conflict(self) -> bool:
        """Call when the records of the winners are applied. True: others may have written since, so read again."""
        attempts = self._attempts
        if not isinstance(attempts, TurnAttempts) or not attempts.losses:
            return False
        before = self._before_us()
        if not before and not self._is_turn_unfinished(self._active()):
            return False
        await asyncio.sleep(before * self.turn)
        attempts.attempted_at = asyncio.get_running_loop().time()
        return True

    def attempts(self) -> WriteAttempts:
        self._attempts = attempts = TurnAttempts(self._signal, self)
        return attempts

    def send(self, attempt_duration: float) -> None:
        """Send the contention signal, unless it is being sent. No attempt waits for it."""
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._signal.send(attempt_duration))

    async def finish(self) -> None:
        await super().finish()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])


class TurnAttempts(WriteAttempts):
    """Losers try again as soon as they have read what the winner wrote."""

    def __init__(self, signal: ContentionSignal, turns: WriterTurns) -> None:
        super().__init__(signal, _FIRST_BACKOFF)
        self._turns, self.losses = turns, 0

    async def back_off(self) -> None:
        if self._turns.is_crowded:
            await super().back_off()
            return
        self.had_conflict = True
        self.losses += 1
        if self.losses >= _MIN_LOSSES and self._loop.time() - self._began > _SIGNAL_AFTER:
            self._turns.send(self.signalled_duration())
