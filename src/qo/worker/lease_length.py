"""How long a worker leases tasks: as long as it was told, or longer if the store is slow.

A task starts only under a lease that still runs, counted from when its claim was sent. Where a claim takes longer than
a lease, every task would be handed back, for ever.
"""

import logging

log = logging.getLogger("qo.worker")
_TIMES = 4  # as long as a claim takes: to receive the tasks, and to renew their leases in time
_LONGEST = 60.0  # seconds; a store that is slower is taken to be away
_DECAY = 0.98  # with every claim: one that finds nothing is quick, and the next one slow again


class LeaseLength:
    def __init__(self, asked: float) -> None:
        self.asked = self._needed = asked
        self._is_told = False

    @property
    def seconds(self) -> float:
        return max(self.asked, self._needed)

    def claimed(self, took: float) -> None:
        """A claim took so long."""
        self._needed = max(min(_LONGEST, _TIMES * took), _DECAY * self._needed)
        if self._needed > self.asked and took > self.asked / 2 and not self._is_told:
            self._is_told = True
            log.warning(
                "a claim takes %.1f s, too long for leases of %g s: they are %.1f s long",
                took,
                self.asked,
                self.seconds,
            )
