"""Parses `redis://`, `rediss://`, `redis+sentinel://` and `rediss+sentinel://` URLs."""

import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from qo.errors import InvalidSetting

_DEFAULT_PREFIX = "qo"
_PORT, _SENTINEL_PORT = 6379, 26379
_MAX_REPLICAS = 100
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:(?P<port>\d{1,5}))?")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_OPTIONS = {"prefix", "archive", "replicas"}
_SENTINEL_OPTIONS = {"service", "sentinel_username", "sentinel_password"}
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")


class Host(NamedTuple):
    name: str
    port: int


class SentinelLogin(NamedTuple):
    """The credentials for sentinels. They have their own users, or none, independent of the servers' users."""

    username: str | None = None
    password: str | None = None
    tls: bool = False

    def __repr__(self) -> str:
        return "<SentinelLogin>"


class RedisAddress(NamedTuple):
    hosts: tuple[Host, ...]  # the sentinels if `service` is set, otherwise the server
    db: int
    tls: bool
    username: str | None
    password: str | None
    service: str | None
    prefix: str
    archive: str | None
    sentinel_login: SentinelLogin
    replicas: int | None  # that must confirm a write; None: all that are connected, and at least one

    @property
    def shown_url(self) -> str:
        """The URL without credentials, for messages."""
        hosts = ",".join(f"{host.name}:{host.port}" for host in self.hosts)
        scheme = "rediss" if self.tls else "redis"
        return f"{scheme}{'+sentinel' if self.service else ''}://{hosts}/{self.db}"

    def __repr__(self) -> str:
        return f"<Address {self.shown_url}>"


def address_of(url: str) -> RedisAddress:
    parts = urlsplit(url)
    has_sentinels = parts.scheme in _SENTINEL_SCHEMES
    tls = parts.scheme.startswith("rediss")
    login, _, netloc = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    options = _options(parts, _OPTIONS | _SENTINEL_OPTIONS if has_sentinels else _OPTIONS)
    hosts = tuple(_host(text, _SENTINEL_PORT if has_sentinels else _PORT) for text in netloc.split(","))
    if has_sentinels and not options.get("service"):
        raise InvalidSetting(f"{parts.scheme}:// needs the name of the monitored service: add ?service=mymaster")
    if not has_sentinels and len(hosts) > 1:
        raise InvalidSetting("redis:// names one server; for several sentinels write redis+sentinel://")
    return RedisAddress(
        hosts=hosts,
        db=_db(parts.path),
        tls=tls,
        username=unquote(username) or None,
        password=unquote(password) or None,
        service=options.get("service"),
        prefix=_checked_prefix(options.get("prefix", _DEFAULT_PREFIX)),
        archive=options.get("archive"),
        sentinel_login=SentinelLogin(
            options.get("sentinel_username") or None, options.get("sentinel_password") or None, tls
        ),
        replicas=_replicas(options.get("replicas", "all" if has_sentinels else "0"), has_sentinels=has_sentinels),
    )


def _options(parts: SplitResult, known: set[str]) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - known)
    if unknown or parts.fragment:
        # If an & in the archive's password is not encoded, a name here is part of that password.
        names = ", ".join(repr(name) for name in unknown if name.isidentifier()) or "what follows ? or #"
        raise InvalidSetting(f"{parts.scheme}:// does not support {names}; the options are: {', '.join(sorted(known))}")
    return options


def _host(text: str, default_port: int) -> Host:
    match = _HOST.fullmatch(text)
    if match is None:
        raise InvalidSetting("the URL names no server; write redis://host:6379/0")
    return Host(match["host"].strip("[]"), int(match["port"] or default_port))


def _db(path: str) -> int:
    name = path.strip("/")
    if "@" in name:
        raise InvalidSetting("the URL has an @ after the server's name; encode a / in the password as %2F")
    if name and not name.isdecimal():
        raise InvalidSetting(f"{name!r} is not a Redis database; write a number, as in redis://host:6379/0")
    return int(name or 0)


def _replicas(number: str, *, has_sentinels: bool) -> int | None:
    if number == "all" and has_sentinels:
        return None
    if not number.isdecimal() or int(number) > _MAX_REPLICAS:
        raise InvalidSetting(f"replicas={number!r:.80} is not a number of replicas; write replicas=1")
    return int(number)


def _checked_prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise InvalidSetting(f"prefix={prefix!r:.80} is not a name: 1 to 64 letters, digits or _.:-")
    return prefix
