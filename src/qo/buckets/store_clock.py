"""The store's clock, from the Date header of its responses and a monotonic clock."""

import http.client
import urllib.error
import urllib.request
from email.message import Message
from email.utils import parsedate_to_datetime

from qo.buckets.address import BucketAddress
from qo.clock import Clock, ClockDistance

_MAX_READING_AGE = 60.0
_REQUEST_TIMEOUT = 5.0
_DATE_RESOLUTION = 1.0  # a Date header has no fractions


class StoreClock:
    def __init__(self, address: BucketAddress, clock: Clock, elapsed: Clock | None = None) -> None:
        self._url = _root_url(address)
        self._clock, self._distance = clock, ClockDistance(clock, elapsed)
        self._began: float | None = None  # the store's time when the monotonic clock was at 0
        self._seen_at: float | None = None  # by the monotonic clock

    def now(self) -> float:
        return self._clock() if self._began is None else self._distance.elapsed() + self._began

    @property
    def is_stale(self) -> bool:
        return self._seen_at is None or self._distance.elapsed() - self._seen_at >= _MAX_READING_AGE

    def was_set(self) -> bool:
        """Whether the local clock was set, or this machine was suspended, since the last call."""
        return self._distance.has_changed()

    def refresh(self) -> None:
        """Read the store's time with an unsigned HEAD request, which every store answers, even if with an error."""
        sent_at = self._clock()
        date = _date(self._url)
        received_at, self._seen_at = self._clock(), self._distance.elapsed()
        if date is not None:  # after a failure, too, the next attempt waits for the full interval
            self._began = received_at + least_offset(sent_at, date, received_at) - self._seen_at


def least_offset(sent_at: float, date: float, received_at: float) -> float:
    """The smallest offset that explains a Date, so that a clock within the Date's second needs no correction.

    The store's clock was in [date, date + 1) at some moment between sending and receiving.
    """
    earliest, latest = date - received_at, date + _DATE_RESOLUTION - sent_at
    return min(max(0.0, earliest), latest)


def _root_url(address: BucketAddress) -> str:
    if address.endpoint:
        return f"{address.endpoint}/"
    if address.scheme == "s3":
        return f"https://s3.{address.region}.amazonaws.com/"
    return f"https://{address.account}.blob.core.windows.net/" if address.account else "https://storage.googleapis.com/"


def _date(url: str) -> float | None:
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - http(s), checked with the address
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT) as answer:  # noqa: S310 - as above
            return _read(answer.headers)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return _read(refusal.headers)
    except (OSError, ValueError, http.client.HTTPException):
        return None  # the next request reports the problem


def _read(headers: Message) -> float | None:
    try:
        return parsedate_to_datetime(headers["Date"] or "").timestamp()
    except ValueError:
        return None
