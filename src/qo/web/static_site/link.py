"""The link that opens the page. Its fragment contains credentials, which browsers do not send but keep in the history.

The credentials are signing keys: each is derived from the secret and signs requests to one service in one region on one
day (UTC).
"""

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from qo.buckets.address import BucketAddress
from qo.web.static_site.credentials import Access
from qo.web.static_site.files import INDEX


class Link(Struct, frozen=True):
    page: str
    code: str  # the credentials, for the fragment or to paste
    expires_at: float
    dates: tuple[str, ...]  # the days (UTC) of the signing keys

    @property
    def url(self) -> str:
        return f"{self.page}#{self.code}"


def make_link(
    address: BucketAddress, access: Access, *, page: str, layout: str, write: bool, now: float, until: float
) -> Link:
    """A link without the secret itself. `credentials.js` reads it."""
    expires_at = min(until, access.expires_at or until)
    keys = signing_keys(access.secret, address.region, start=now, end=expires_at)
    said: dict[str, Any] = {
        "k": access.access_key_id,
        "t": access.token,
        "d": keys,
        "e": int(expires_at),
        "w": write,
        "r": address.region,
        "u": address.endpoint,
        "b": address.bucket,
        "p": address.prefix,
        "l": layout,
    }
    text = json.dumps({name: value for name, value in said.items() if value not in ("", False)}, separators=(",", ":"))
    return Link(f"{page}{INDEX}", urlsafe_b64encode(text.encode()).decode(), expires_at, tuple(keys))


SERVICE = "s3"


def signing_key(secret: str, date: str, region: str, service: str = SERVICE) -> str:
    """The signing key of Signature Version 4, as hex. The secret cannot be derived from it."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def signing_keys(secret: str, region: str, *, start: float, end: float) -> dict[str, str]:
    """The keys of all days from `start` to `end`."""
    return {date: signing_key(secret, date, region) for date in _dates(start, end)}


def _dates(start: float, end: float) -> Iterator[str]:
    day, last = (datetime.fromtimestamp(instant, UTC).date() for instant in (start, end))
    while day <= last:
        yield f"{day:%Y%m%d}"
        day += timedelta(days=1)
