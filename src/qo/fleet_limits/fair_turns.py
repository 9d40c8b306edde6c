"""Turns between groups: a worker holds about the same number of tasks of each group that has tasks.

`share` is how many tasks of one group the worker may hold. It begins with one and grows while a claim returns fewer
tasks than requested, so that a worker does not idle while only one group has tasks. It shrinks again while claims are
full.
"""

from collections.abc import Iterator, Mapping

from qo.clock import Clock
from qo.model import MAX_NAMES, type_of_key

_MAX_SHARE = 4096
_SHRINK_INTERVAL = 0.1  # seconds


class FairTurns:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.types: frozenset[str] = frozenset()
        self.held: Mapping[str, int] = {}  # by `group_key`: the tasks that the worker holds; kept by its owner
        self._share = 1
        self._shrunk_at = float("-inf")

    def limits(self, most: int) -> tuple[dict[str, int], dict[str, int]]:
        """For a claim of at most `most` tasks:

        the limit for every group of a type, and the limits of groups that hold tasks.
        """
        if not self.types:
            return {}, {}
        share = min(self._share, max(1, most))
        held = {key: max(0, self._share - number) for key, number in self._of_fair_types()}
        lowest = sorted(held.items(), key=lambda entry: entry[1])[:MAX_NAMES]
        return dict.fromkeys(self.types, share), dict(lowest)

    def claimed(self, number: int, requested: int) -> bool:
        """Record a claim that returned this many tasks. True: there may be more, so claim again immediately."""
        if not self.types:
            return False
        if number < requested:
            is_limited = self._share < _MAX_SHARE and (number > 0 or any(True for _ in self._of_fair_types()))
            self._share = min(_MAX_SHARE, 2 * self._share) if is_limited else self._share
            return is_limited
        now = self._clock()
        if now - self._shrunk_at >= _SHRINK_INTERVAL:
            self._share, self._shrunk_at = max(1, self._share // 2), now
        return False

    def _of_fair_types(self) -> Iterator[tuple[str, int]]:
        return ((key, number) for key, number in self.held.items() if type_of_key(key) in self.types)
