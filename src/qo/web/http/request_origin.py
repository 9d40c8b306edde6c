"""Where a request comes from: the Host header, the page that sent it, and whether a proxy forwarded it.

Browsers send Origin and Sec-Fetch-* headers, which pages cannot change. A page from another site must not use a
visitor's browser to call a server that trusts this browser, because it runs on the same machine or has a session.

A server without tokens trusts its own machine. A proxy on that machine forwards requests of other machines, so a
request with headers of a proxy is not trusted. These headers only remove trust, they never add it.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from qo.errors import InvalidSetting

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(
    r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_])?)(?::(?P<port>[0-9]{1,5}))?"
)
_MAX_PORT: Final = 65535


@lru_cache(maxsize=256)
def host_name(host: str) -> str | None:
    """The name in a Host header, in lower case and without its port; None if the header is malformed."""
    found = _HOST.fullmatch(host.lower())
    if found is None or int(found["port"] or 0) > _MAX_PORT:
        return None
    return found["name"]


def allowed_names(hosts: Iterable[str]) -> frozenset[str]:
    """These names and the loopback names. Raises InvalidSetting."""
    return LOOPBACK | {_check_host(host) for host in hosts}


def _check_host(host: str) -> str:
    name = host_name(host)
    if name is None:
        raise InvalidSetting(f"{host!r:.80} is not a host name such as queue.example.com: no scheme, no path, no *")
    return name


HEADERS: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"})
_TRUSTED_SITES: Final = frozenset({b"same-origin", b"none"})  # none: the user typed the address or used a bookmark


def is_foreign_origin(origin: str | None, host: str) -> bool:
    """Whether a page of another origin sent the request."""
    return origin is not None and not (host and origin.lower() in (f"http://{host}", f"https://{host}"))


def is_cross_site(headers: dict[bytes, bytes], method: str) -> bool:
    """Whether a page of another site made the browser send the request, other than by a navigation.

    A link, and the redirect back from a login, navigate the whole window by GET: they show a page to the user and
    nothing to the page they come from. Images, scripts, frames and forms of other sites are rejected. Clients that are
    not browsers do not send these headers.
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


_NAMES = frozenset(
    {
        b"forwarded",
        b"via",
        b"client-ip",
        b"true-client-ip",
        b"cdn-loop",
        b"max-forwards",
        b"proxy-connection",
        b"x-real-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-proxyuser-ip",
        b"x-original-host",
        b"x-original-url",
        b"x-rewrite-url",
        b"x-scheme",
        b"x-host",
        b"x-request-start",
        b"x-cache",
        b"x-proxy-id",
        b"wl-proxy-client-ip",
        b"ssl-client-cert",
        b"tailscale-user-login",
    }
)
_PREFIXES = (
    b"x-forwarded",  # -for, -host, -proto, -port, -server, -prefix, -by, -user, ...
    b"x-original-forwarded",
    b"cf-",  # Cloudflare
    b"x-amz-cf-",  # CloudFront
    b"x-amzn-oidc-",  # AWS load balancers; X-Amzn-Trace-Id is left out, because local clients with tracing send it too
    b"cloudfront-",
    b"x-azure-",
    b"x-arr-",  # IIS, Azure App Service
    b"x-appengine-",
    b"x-envoy-",
    b"x-akamai-",
    b"akamai-",
    b"fastly-",
    b"fly-",
    b"x-vercel-",
    b"x-nf-",  # Netlify
    b"x-varnish",
    b"x-traefik-",
    b"x-nginx-",
    b"x-ngrok-",
    b"ngrok-",
    b"x-auth-request-",  # oauth2-proxy
    b"proxy-",
)


def is_forwarded(headers: Iterable[tuple[bytes, bytes]], http_version: str) -> bool:
    """Whether a header or the HTTP version indicates a proxy: nginx before 1.29.7 uses HTTP/1.0 by default."""
    if http_version == "1.0":
        return True
    return any(name in _NAMES or name.startswith(_PREFIXES) for name, _ in headers)
