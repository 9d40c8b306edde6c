"""The page's files as they are published: those of the package, with what holds for one bucket written in."""

import json
from html import escape
from pathlib import Path
from typing import NamedTuple

from qo.buckets.address import BucketAddress
from qo.web.static_site.location import content_policy, store_url

SOURCE = Path(__file__).parents[1] / "dashboard"
INDEX, CONFIG = "index.html", "config.json"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_OF_THE_SERVER = ("api.js", "events.js")
_CHARSET = '<meta charset="utf-8">'  # what must be read before anything else


class File(NamedTuple):
    name: str
    content: bytes
    content_type: str


def page_files(address: BucketAddress, layout: str, page: str) -> list[File]:
    """What others refer to comes first: whoever opens the page while it is published meets no missing file."""
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
    return f"{before}{found}\n{meta}{_fetched_early(after)}".encode()


def _fetched_early(page: str) -> str:
    """The server's source is not needed here, and the bucket's, a tree of modules, is fetched in one go."""
    ours = [path.name for path in sorted((SOURCE / "sources").glob("*.js")) if path.name not in _OF_THE_SERVER]
    for name in _OF_THE_SERVER:
        page = page.replace(f"{_early(name)}\n", "")
    return page.replace("<script ", "".join(f"{_early(name)}\n" for name in ours) + "<script ", 1)


def _early(name: str) -> str:
    return f'<link rel="modulepreload" href="sources/{name}">'
