"""The files of the static page, adapted to one bucket; the URLs of the page and its store, and the security policy."""

import json
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from qo.buckets.address import BucketAddress
from qo.errors import InvalidSetting
from qo.url_secrets import hide_password

FOLDER = "ui"


def store_url(address: BucketAddress) -> str:
    """The URL of the bucket, with a trailing slash: a path under the endpoint, or a separate host.

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


SOURCE = Path(__file__).parents[1] / "dashboard"
INDEX, CONFIG = "index.html", "config.json"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_SERVER_FILES = ("api.js", "events.js")
_CHARSET = '<meta charset="utf-8">'  # must come first


class File(NamedTuple):
    name: str
    content: bytes
    content_type: str


def page_files(address: BucketAddress, layout: str, page: str) -> list[File]:
    """The files in the order of publishing: referenced files first, so that a page is never incomplete."""
    policy = content_policy(page, store_url(address))
    files = [
        File(name, _content(path, policy), _TYPES[path.suffix])
        for path in SOURCE.rglob("*")
        if path.suffix in _TYPES and (name := path.relative_to(SOURCE).as_posix()) != CONFIG
    ]
    files.sort(key=lambda file: (file.name == INDEX, file.name))
    config = {
        "source": "bucket",
        "bucket": address.bucket,
        "prefix": address.prefix,
        "region": address.region,
        "endpoint": address.endpoint,
        "layout": layout,
        "page": page,
        "files": [file.name for file in files],
    }
    return [File(CONFIG, json.dumps(config, indent=2).encode(), _TYPES[".json"]), *files]


def _content(path: Path, policy: str) -> bytes:
    content = path.read_bytes()
    if path.name != INDEX:
        return content
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
    before, found, after = content.decode().partition(_CHARSET)
    if not found:
        raise ValueError(f"{path} does not begin with {_CHARSET}")
    return f"{before}{found}\n{meta}{_with_preloads(after)}".encode()


def _with_preloads(page: str) -> str:
    """Preloads the modules for buckets instead of those for servers."""
    ours = [path.name for path in sorted((SOURCE / "sources").glob("*.js")) if path.name not in _SERVER_FILES]
    for name in _SERVER_FILES:
        page = page.replace(f"{_preload(name)}\n", "")
    return page.replace("<script ", "".join(f"{_preload(name)}\n" for name in ours) + "<script ", 1)


def _preload(name: str) -> str:
    return f'<link rel="modulepreload" href="sources/{name}">'
