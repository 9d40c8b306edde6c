"""The rate limits of the controls, kept by the server for a worker that speaks HTTP."""

from qo.notes import Controls
from qo.worker.limits import WHOLE, RateLimits


class Rates(RateLimits):
    def obey(self, control: Controls) -> None:
        self.set_rates(control.rate_limits | {WHOLE: control.rate_limit})

    def per_type_limits(self) -> dict[str, int]:
        now = self._clock()
        return {type: max(0, bucket.available(now)) for type, bucket in self._buckets.items() if type != WHOLE}
