"""The files of the static page: those of the package, adapted to one bucket."""

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
