"""The switches' rate limits, kept by the server for a worker that speaks HTTP."""

from qo.clock import Clock
from qo.model import Task
from qo.notes import Controls
from qo.worker.limits import WHOLE, TokenBucket


class Rates:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def obey(self, control: Controls) -> None:
        """Take over rates; a bucket whose rate did not change keeps its tokens."""
        rates = control.rate_limits | {WHOLE: control.rate_limit}
        now, old = self._clock(), self._buckets
        self._buckets = {
            key: old[key] if key in old and old[key].rate == rate else TokenBucket(rate, now)
            for key, rate in rates.items()
            if rate > 0
        }

    def total(self, room: int) -> int:
        bucket = self._buckets.get(WHOLE)
        return room if bucket is None else min(room, bucket.available(self._clock()))

    def per_type_limits(self) -> dict[str, int]:
        now = self._clock()
        return {type: max(0, bucket.available(now)) for type, bucket in self._buckets.items() if type != WHOLE}

    def started(self, tasks: list[Task]) -> None:
        for task in tasks:
            for key in (task.type, WHOLE):
                if (bucket := self._buckets.get(key)) is not None:
                    bucket.take(1)
