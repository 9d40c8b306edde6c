"""How long an idle worker waits between two calls of the store: the slower a call, the longer.

A call of a file or a server nearby takes about a millisecond. A call of a cloud store takes about 25 and costs money.
The measured duration tells them apart, so engines need not declare their cost.
"""

_DURATION_FACTOR = 2400  # the interval is this many times the duration of the last call


def idle_interval(took: float, shortest: float, longest: float) -> float:
    """Seconds to wait after a call that took `took` seconds, between `shortest` and `longest`."""
    return min(longest, max(shortest, _DURATION_FACTOR * took))
