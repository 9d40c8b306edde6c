"""Host headers: exactly one, well formed, and a name this server answers to."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from qo.errors import InvalidSetting

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(
    r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_])?)(?::(?P<port>[0-9]{1,5}))?"
)
_MAX_PORT: Final = 65535


@lru_cache(maxsize=256)
def host_name(host: str) -> str | None:
    """The name in a Host header, in lower case and without its port. None: it is no host."""
    found = _HOST.fullmatch(host.lower())
    if found is None or int(found["port"] or 0) > _MAX_PORT:
        return None
    return found["name"]


def allowed_names(hosts: Iterable[str]) -> frozenset[str]:
    """These names, and those of the loopback."""
    return LOOPBACK | {_check_host(host) for host in hosts}


def _check_host(host: str) -> str:
    name = host_name(host)
    if name is None:
        raise InvalidSetting(f"{host!r:.80} is not a host name such as queue.example.com: no scheme, no path, no *")
    return name
