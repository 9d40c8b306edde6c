"""Whether a request came through a proxy: as far as the request itself tells.

A server without tokens trusts its own machine. A proxy on that machine passes on what the world sends, so a request
that shows a proxy is not trusted. Nobody is believed because of these headers; they only ever take trust away.
"""

from collections.abc import Iterable

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
    """True if a header shows a proxy, or the version does: nginx before 1.29.7 speaks HTTP/1.0 by default."""
    if http_version == "1.0":
        return True
    return any(name in _NAMES or name.startswith(_PREFIXES) for name, _ in headers)
