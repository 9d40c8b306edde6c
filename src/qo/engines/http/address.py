"""Parses `https://worker:TOKEN@queue.example.com/prefix` into an address and a token."""

import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from qo.errors import InvalidSetting

TOKEN = "QO_TOKEN"  # noqa: S105 - the variable's name


class HttpAddress(NamedTuple):
    url: str  # without the token, so that logs may contain it
    token: str

    def __repr__(self) -> str:
        return f"<Address {self.url}>"


def address_of(url: str) -> HttpAddress:
    """Parse a URL. A token in the URL takes precedence over QO_TOKEN."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:  # the original error is dropped: the text may be the beginning of a token
        raise InvalidSetting(
            "the port in the queue's URL is not a number from 0 to 65535; encode a / in the token as %2F"
        ) from None
    if not host:
        raise InvalidSetting("the queue's URL names no server; write http://127.0.0.1:8000")
    if parts.username and not parts.password:  # a user name would appear in logs and listings
        raise InvalidSetting(f"write the token as a password: {parts.scheme}://worker:TOKEN@{host}, or set {TOKEN}")
    if parts.query or parts.fragment:
        raise InvalidSetting(f"{parts.scheme}://{host} has no options; remove what follows the path")
    place = f"[{host}]" if ":" in host else host
    place += "" if port is None else f":{port}"
    token = unquote(parts.password) if parts.password else os.environ.get(TOKEN, "").strip()
    return HttpAddress(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", token)
