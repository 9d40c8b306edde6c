"""A store's clock, seen through the Date of its answers and kept as a distance from our own clock."""

import http.client
import urllib.error
import urllib.request
from email.message import Message
from email.utils import parsedate_to_datetime

from qo.buckets.address import Address
from qo.clock import Clock

_FRESH = 60.0  # seconds for which a distance is believed
_PATIENCE = 5.0  # seconds to wait for an answer
_TICK = 1.0  # seconds; a Date has no fractions


class StoreClock:
    def __init__(self, address: Address, clock: Clock) -> None:
        self._url = _front_door(address)
        self._clock = clock
        self._offset = 0.0
        self._seen_at: float | None = None

    def now(self) -> float:
        return self._clock() + self._offset

    @property
    def is_stale(self) -> bool:
        """Also when our own clock was set back."""
        return self._seen_at is None or not 0 <= self._clock() - self._seen_at < _FRESH

    def look(self) -> None:
        """Ask for the time: one unsigned HEAD, which every store answers, if only with a refusal."""
        sent_at = self._clock()
        date = _date(self._url)
        self._seen_at = self._clock()  # also without an answer: not again with every request
        if date is not None:
            self._offset = least_offset(sent_at, date, self._seen_at)


def least_offset(sent_at: float, date: float, received_at: float) -> float:
    """The smallest distance that explains a Date, so that a clock within its second is left alone.

    The store's clock was in [date, date + 1) at some moment between sending and receiving.
    """
    earliest, latest = date - received_at, date + _TICK - sent_at
    return min(max(0.0, earliest), latest)


def _front_door(address: Address) -> str:
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
