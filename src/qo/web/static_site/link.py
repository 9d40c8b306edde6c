"""The address that opens the page: credentials in its fragment. A browser sends it to nobody; its history keeps it."""

import json
from base64 import urlsafe_b64encode
from typing import Any

from msgspec import Struct

from qo.buckets.address import BucketAddress
from qo.web.static_site.credentials import Access
from qo.web.static_site.files import INDEX
from qo.web.static_site.signing_keys import signing_keys


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
