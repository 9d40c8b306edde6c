"""Which store the apps of this process use. `qo worker --url` overrides the URL in the code.

A handler may run in a child process, which imports the program again and creates its own App objects. The worker passes
its `Redirect` to every child, so that an app uses the same store in both.
"""

import os
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from qo.errors import InvalidSetting

DEFAULT_URL = "sqlite:///qo.db"
_S3_VARIABLES = ("S3_ENDPOINT", "S3_REGION")  # settings of the bucket in S3_BUCKET


class Redirect(Struct, frozen=True, kw_only=True):
    """Every field is optional: an empty Redirect changes nothing."""

    folder: str = ""  # relative paths start here, even after a handler called os.chdir
    default: str = ""  # the store of apps without a URL, even after a handler changed QO_URL
    named: str = ""  # the URL of the worker's app; all apps with this URL use `served`
    served: str = ""  # the store that the worker uses instead
    tq: str = ""  # the store of a `tq` without a URL


class _Process:
    def __init__(self) -> None:
        self.redirect = Redirect()


_process = _Process()


def redirect() -> Redirect:
    return _process.redirect


def adopt(redirect: Redirect) -> None:
    """Use the redirect of another process; an empty one undoes it."""
    _process.redirect = redirect


def pin() -> None:
    """Fix the current meaning of relative paths and of apps without a URL. Call it before a handler runs."""
    folder, default = quote(str(Path.cwd())), default_url()
    adopt(replace(_process.redirect, folder=folder, default=_absolute(default, folder)))


def serve(named: str, served: str) -> None:
    """Redirect all apps with the URL `named` to `served`."""
    folder = _process.redirect.folder
    adopt(replace(_process.redirect, named=_absolute(named, folder), served=_absolute(served, folder)))


def serve_tq(url: str) -> None:
    """Set the store of a `tq` without a URL."""
    adopt(replace(_process.redirect, tq=_absolute(url, _process.redirect.folder or quote(str(Path.cwd())))))


def is_pinned() -> bool:
    """Whether this is a process of a worker, in which `tq` must not start another one."""
    return bool(_process.redirect.folder)


def default_url() -> str:
    """QO_URL, else the bucket that S3_BUCKET names, else a SQLite file in the working directory."""
    if url := os.environ.get("QO_URL"):
        return url
    if bucket := os.environ.get("S3_BUCKET"):
        return f"s3://{bucket}"
    if alone := next((name for name in _S3_VARIABLES if os.environ.get(name)), None):
        raise InvalidSetting(f"{alone} is set, but S3_BUCKET is not; set it, or choose a store with QO_URL or --url")
    return DEFAULT_URL


def destination(url: str | None) -> str:
    """The store of an app with this URL, or without one."""
    known = _process.redirect
    named = _absolute(url or known.default or default_url(), known.folder)
    return known.served if named == known.named else named


def _absolute(url: str, folder: str) -> str:
    start = "sqlite:///"
    is_relative = url.startswith(start) and not url.startswith(f"{start}/")
    return f"{start}{folder}/{url.removeprefix(start)}" if folder and is_relative else url
