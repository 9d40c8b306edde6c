"""Which store the apps of this process use. `qo worker --url` goes before the URL in the code.

A handler may run in a child process, which imports the program again and has App objects of its own. The worker passes
its `Redirect` to every child, so that an app means the same store in both.
"""

import os
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from qo.errors import InvalidSetting

DEFAULT_URL = "sqlite:///qo.db"
_S3_VARIABLES = ("S3_ENDPOINT", "S3_REGION")  # of a bucket that is named by S3_BUCKET


class Redirect(Struct, frozen=True, kw_only=True):
    """Every field is optional: an empty Redirect changes nothing."""

    folder: str = ""  # relative paths start here, even after a handler called os.chdir
    default: str = ""  # the store of apps without a URL, even after a handler changed QO_URL
    named: str = ""  # the store the worker's app names; every app that names it follows the worker
    served: str = ""  # the store the worker serves instead
    tq: str = ""  # the store of a `tq` that has not been told one


class _Process:
    def __init__(self) -> None:
        self.redirect = Redirect()


_process = _Process()


def redirect() -> Redirect:
    return _process.redirect


def adopt(redirect: Redirect) -> None:
    """Use the destinations of another process, or undo that with an empty Redirect."""
    _process.redirect = redirect


def pin() -> None:
    """Keep what relative paths and apps without a URL mean now. Call it before a handler runs."""
    folder, default = quote(str(Path.cwd())), default_url()
    adopt(replace(_process.redirect, folder=folder, default=_absolute(default, folder)))


def serve(named: str, served: str) -> None:
    """Send every app that names the store `named` to `served`."""
    folder = _process.redirect.folder
    adopt(replace(_process.redirect, named=_absolute(named, folder), served=_absolute(served, folder)))


def serve_tq(url: str) -> None:
    """Give every `tq` without a URL this one."""
    adopt(replace(_process.redirect, tq=_absolute(url, _process.redirect.folder or quote(str(Path.cwd())))))


def is_pinned() -> bool:
    """A worker runs this process: nothing in the program is to start another."""
    return bool(_process.redirect.folder)


def default_url() -> str:
    """QO_URL, else the bucket that S3_BUCKET names, else a SQLite file in the working directory."""
    if url := os.environ.get("QO_URL"):
        return url
    if bucket := os.environ.get("S3_BUCKET"):
        return f"s3://{bucket}"
    if alone := next((name for name in _S3_VARIABLES if os.environ.get(name)), None):
        raise InvalidSetting(f"{alone} is set, but no bucket: set S3_BUCKET, or name the queue with QO_URL or --url")
    return DEFAULT_URL


def destination(url: str | None) -> str:
    """Where an app with this URL, or with none, sends its tasks."""
    known = _process.redirect
    named = _absolute(url or known.default or default_url(), known.folder)
    return known.served if named == known.named else named


def _absolute(url: str, folder: str) -> str:
    start = "sqlite:///"
    is_relative = url.startswith(start) and not url.startswith(f"{start}/")
    return f"{start}{folder}/{url.removeprefix(start)}" if folder and is_relative else url
