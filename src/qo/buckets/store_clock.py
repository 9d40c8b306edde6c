"""A store's clock, seen through the Date of its answers and reckoned on by a clock that nobody sets."""

import http.client
import urllib.error
import urllib.request
from email.message import Message
from email.utils import parsedate_to_datetime

from qo.buckets.address import BucketAddress
from qo.clock import Clock, ClockDistance

_FRESH = 60.0  # seconds for which a look is believed
_PATIENCE = 5.0  # seconds to wait for an answer
_TICK = 1.0  # seconds; a Date has no fractions


class StoreClock:
    def __init__(self, address: BucketAddress, clock: Clock, elapsed: Clock | None = None) -> None:
        self._url = _front_door(address)
        self._clock, self._distance = clock, ClockDistance(clock, elapsed)
        self._began: float | None = None  # the store's time when the clock that nobody sets was at 0
        self._seen_at: float | None = None  # by the clock that nobody sets

    def now(self) -> float:
        return self._clock() if self._began is None else self._distance.elapsed() + self._began

    @property
    def is_stale(self) -> bool:
        return self._seen_at is None or self._distance.elapsed() - self._seen_at >= _FRESH

    def was_set(self) -> bool:
        """Whether our own clock was set, or this machine stopped, since this was last asked."""
        return self._distance.has_changed()

    def look(self) -> None:
        """Ask for the time: one unsigned HEAD, which every store answers, if only with a refusal."""
        sent_at = self._clock()
        date = _date(self._url)
        received_at, self._seen_at = self._clock(), self._distance.elapsed()
        if date is not None:  # without an answer the next look is as far: not with every request
            self._began = received_at + least_offset(sent_at, date, received_at) - self._seen_at


def least_offset(sent_at: float, date: float, received_at: float) -> float:
    """The smallest distance that explains a Date, so that a clock within its second is left alone.

    The store's clock was in [date, date + 1) at some moment between sending and receiving.
    """
    earliest, latest = date - received_at, date + _TICK - sent_at
    return min(max(0.0, earliest), latest)


def _front_door(address: BucketAddress) -> str:
    if address.endpoint:
        return f"{address.endpoint}/"
    if address.scheme == "s3":
        return f"https://s3.{address.region}.amazonaws.com/"
    return f"https://{address.account}.blob.core.windows.net/" if address.account else "https://storage.googleapis.com/"


def _date(url: str) -> float | None:
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - http(s), checked with the address
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310 - as above
            return _read(answer.headers)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return _read(refusal.headers)
    except (OSError, ValueError, http.client.HTTPException):
        return None  # the request that follows will say what is wrong


def _read(headers: Message) -> float | None:
    try:
        return parsedate_to_datetime(headers["Date"] or "").timestamp()
    except ValueError:
        return None
