"""Which pages may call: the rules about Origin and Sec-Fetch-*, which browsers send and pages cannot change.

A page from elsewhere must not use a visitor's browser to call a server that trusts this browser, be it because it runs
on the same machine or because it keeps a session.
"""

from typing import Final
from urllib.parse import urlsplit

from qo.errors import InvalidSetting

HEADERS: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"})
_TRUSTED_SITES: Final = frozenset({b"same-origin", b"none"})  # none: the user typed the address or used a bookmark


def is_foreign_origin(origin: str | None, host: str) -> bool:
    """Whether a page of another origin than this server's makes the request."""
    return origin is not None and not (host and origin.lower() in (f"http://{host}", f"https://{host}"))


def is_cross_site(headers: dict[bytes, bytes], method: str) -> bool:
    """Whether a page of another origin made the browser send this, except by leading it here.

    A link, and the redirect back from a login elsewhere, are navigations of the whole window by GET: they show a page
    to the user and nothing to the page they come from. An image, script, frame or form is refused. Other clients than
    browsers do not send these headers.
    """
    site = headers.get(b"sec-fetch-site")
    if site is None or site in _TRUSTED_SITES:
        return False
    is_navigation = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return not (is_navigation and method in ("GET", "HEAD"))


def check_origin(origin: str) -> str:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise InvalidSetting(f"{origin!r:.80} is not an origin such as https://example.com: no path, no *")
    return origin
