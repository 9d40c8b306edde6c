"""The address that opens the page: credentials in its fragment. A browser sends it to nobody; its history keeps it."""

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
    code: str  # the credentials, as the page reads them from its fragment or has them pasted
    expires_at: float
    dates: tuple[str, ...]  # the days (UTC) on which its keys sign

    @property
    def url(self) -> str:
        return f"{self.page}#{self.code}"


def make_link(
    address: BucketAddress, access: Access, *, page: str, layout: str, write: bool, now: float, until: float
) -> Link:
    """What the page needs and no more: the secret stays here. `credentials.js` reads it."""
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
    """Signature Version 4's chain of HMACs, as hex. The secret cannot be found from it."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def signing_keys(secret: str, region: str, *, start: float, end: float) -> dict[str, str]:
    """The keys of every day from `start` to `end`."""
    return {date: signing_key(secret, date, region) for date in _dates(start, end)}


def _dates(start: float, end: float) -> Iterator[str]:
    day, last = (datetime.fromtimestamp(instant, UTC).date() for instant in (start, end))
    while day <= last:
        yield f"{day:%Y%m%d}"
        day += timedelta(days=1)
