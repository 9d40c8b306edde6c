"""Where the page lies, as a browser sees it, and what it may reach from there."""

from urllib.parse import quote, urlsplit

from qo.buckets.address import BucketAddress
from qo.errors import InvalidSetting
from qo.url_secrets import hide_password

FOLDER = "ui"


def store_url(address: BucketAddress) -> str:
    """The bucket as the page asks for it: under the endpoint, or at a host of its own. Ends in a slash.

    A name with a dot fits no certificate, so such a bucket stays under the endpoint. `baseOf` in s3.js says the same.
    """
    if address.endpoint:
        return f"{address.endpoint}/{quote(address.bucket)}/"
    host = f"s3.{address.region}.amazonaws.com"
    return f"https://{host}/{address.bucket}/" if "." in address.bucket else f"https://{address.bucket}.{host}/"


def page_url(address: BucketAddress) -> str:
    """The folder of the page in the bucket. Ends in a slash."""
    return store_url(address) + quote(f"{root(address)}{FOLDER}/")


def root(address: BucketAddress) -> str:
    return f"{address.prefix}/" if address.prefix else ""


def check_page(url: str) -> str:
    """An address people serve the page at themselves, with its slash."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment or "'" in url:
        raise InvalidSetting(
            f"--page {hide_password(url)!r:.100} is not an address such as https://tasks.example.com/ui/"
        )
    return url.rstrip("/") + "/"


def content_policy(page: str, store: str) -> str:
    """Scripts and styles from the page's own folder, questions to the store, nothing else.

    Not 'self': under an endpoint all buckets share one origin, and what others put there must not run here.
    """
    return (
        f"default-src 'none'; script-src {page}; style-src {page}; img-src {page} data:; "
        f"connect-src {page}config.json {store}; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types qo-xml"
    )
