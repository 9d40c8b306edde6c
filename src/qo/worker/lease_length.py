"""The length of a worker's leases: as configured, or longer if the store is slow.

A task starts only under a lease that has not expired, counted from the moment its claim was sent. If a claim took
longer than a lease, the worker would hand back every task.
"""

import logging

log = logging.getLogger("qo.worker")
_CLAIM_FACTOR = 4  # a lease lasts this many claims, to receive the tasks and to renew their leases in time
_MAX_LENGTH = 60.0  # seconds; a slower store counts as unreachable
_DECAY = 0.98  # per claim; slow, because a claim that returns nothing is quick and says little about the next one


class LeaseLength:
    def __init__(self, asked: float) -> None:
        self.asked = self._needed = asked
        self._has_warned = False

    @property
    def seconds(self) -> float:
        return max(self.asked, self._needed)

    def claimed(self, took: float) -> None:
        """Adapt to a claim that took `took` seconds."""
        self._needed = max(min(_MAX_LENGTH, _CLAIM_FACTOR * took), _DECAY * self._needed)
        if self._needed > self.asked and took > self.asked / 2 and not self._has_warned:
            self._has_warned = True
            log.warning(
                "a claim takes %.1f s, too long for leases of %g s: using leases of %.1f s",
                took,
                self.asked,
                self.seconds,
            )
