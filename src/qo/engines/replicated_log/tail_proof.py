"""When a replica was last proved to be at the end of the log.

A writer that was suspended may find the next number free because its record was deleted in the meantime. The garbage
collector deletes nothing younger than a day, so within an hour after the proof a free number was never used. Later, the
caller must read the floor after the answer of the store. The clocks decide only whether to make this additional
request.
"""

from typing import NamedTuple

from qo.clock import Clock, boot_clock, system_clock


class ProofStart(NamedTuple):
    """The clocks before a request was sent."""

    elapsed: float
    wall: float
    resets: int = 0  # of the proof, until then


class TailProof:
    def __init__(self, trust: float, elapsed: Clock = boot_clock, wall: Clock = system_clock) -> None:
        self._trust, self._elapsed, self._wall = trust, elapsed, wall
        self._proof: ProofStart | None = None
        self._resets = 0

    def begin(self) -> ProofStart:
        """Call before the request that may prove it: a read of the next record, or its creation."""
        return ProofStart(self._elapsed(), self._wall(), self._resets)

    def proved(self, start: ProofStart) -> None:
        """The next record did not exist after `start`, and had not been deleted.

        A reset since then takes precedence.
        """
        if start.resets == self._resets and (self._proof is None or start.elapsed > self._proof.elapsed):
            self._proof = start

    def reset(self) -> None:
        """The replica was replaced, or the machine may have been suspended, so nothing is known about its position."""
        self._proof = None
        self._resets += 1

    def is_trusted(self) -> bool:
        """Whether the proof is young enough by both clocks. Ask after the store's answer, not before the request.

        The clock of a virtual machine may stand still while it is suspended; the wall clock then jumps when it is set.
        """
        if self._proof is None:
            return False
        now = self.begin()
        return 0 <= now.elapsed - self._proof.elapsed < self._trust and abs(now.wall - self._proof.wall) < self._trust

    def is_younger_than(self, seconds: float) -> bool:
        return self._proof is not None and self._elapsed() - self._proof.elapsed < seconds and self.is_trusted()
