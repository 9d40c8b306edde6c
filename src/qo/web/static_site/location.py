"""The URLs of the page and its store, and the content security policy."""

from urllib.parse import quote, urlsplit

from qo.buckets.address import BucketAddress
from qo.errors import InvalidSetting
from qo.url_secrets import hide_password

FOLDER = "ui"


def store_url(address: BucketAddress) -> str:
    """The URL of the bucket, with a trailing slash: a path under the endpoint, or a host of its own.

    The certificate does not cover names with a dot, so such buckets use a path. `baseOf` in s3.js does the same.
    """
    if address.endpoint:
        return f"{address.endpoint}/{quote(address.bucket)}/"
    host = f"s3.{address.region}.amazonaws.com"
    return f"https://{host}/{address.bucket}/" if "." in address.bucket else f"https://{address.bucket}.{host}/"


def page_url(address: BucketAddress) -> str:
    """The URL of the page's folder in the bucket, with a trailing slash."""
    return store_url(address) + quote(f"{root(address)}{FOLDER}/")


def root(address: BucketAddress) -> str:
    return f"{address.prefix}/" if address.prefix else ""


def check_page(url: str) -> str:
    """A custom URL of the page, with a trailing slash. Raises InvalidSetting."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment or "'" in url:
        raise InvalidSetting(f"--page {hide_password(url)!r:.100} is not a URL such as https://tasks.example.com/ui/")
    return url.rstrip("/") + "/"


def content_policy(page: str, store: str) -> str:
    """Allows scripts and styles of the page's folder and requests to the store, nothing else.

    Not 'self': all buckets of an endpoint share one origin, and scripts of other buckets must not run here.
    """
    return (
        f"default-src 'none'; script-src {page}; style-src {page}; img-src {page} data:; "
        f"connect-src {page}config.json {store}; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types qo-xml"
    )
