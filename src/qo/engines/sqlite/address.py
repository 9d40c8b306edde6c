"""Parses `sqlite:///relative.db` and `sqlite:////absolute.db` into paths."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from qo.errors import InvalidSetting
from qo.url_secrets import hide_password

_HOW = "write sqlite:///queue.db for a file here, or sqlite:////var/lib/queue.db for a file anywhere"


def path_of(url: str) -> Path:
    parts = urlsplit(url)
    name = unquote(parts.path[1:])
    if parts.query or parts.fragment:
        raise InvalidSetting(
            f"{hide_password(url)!r}: sqlite:// has no options; leave out what follows the file's name"
        )
    if parts.netloc or not name or name.endswith("/"):
        raise InvalidSetting(f"{hide_password(url)!r} does not name a file; {_HOW}")
    if name == ":memory:":
        raise InvalidSetting(f"{hide_password(url)!r}: for tasks in memory write memory://")
    return Path(name).absolute()  # resolved now, because the process may change its directory later
