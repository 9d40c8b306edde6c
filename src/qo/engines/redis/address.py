"""`redis://`, `rediss://`, `redis+sentinel://` and `rediss+sentinel://` URLs as addresses."""

import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from qo.errors import InvalidSetting

PREFIX = "qo"
_PORT, _SENTINEL_PORT = 6379, 26379
_MOST_REPLICAS = 100
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:(?P<port>\d{1,5}))?")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_OPTIONS = {"prefix", "archive", "replicas"}
_OF_SENTINELS = {"service", "sentinel_username", "sentinel_password"}
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")


class Host(NamedTuple):
    name: str
    port: int


class SentinelLogin(NamedTuple):
    """What sentinels ask for. It is not the servers' login: sentinels have users of their own, or none."""

    username: str | None = None
    password: str | None = None
    tls: bool = False

    def __repr__(self) -> str:
        return "<SentinelLogin>"


class RedisAddress(NamedTuple):
    hosts: tuple[Host, ...]  # of the sentinels, if there is a service
    db: int
    tls: bool
    username: str | None
    password: str | None
    service: str | None
    prefix: str
    archive: str | None
    sentinel_login: SentinelLogin
    replicas: int | None  # that must have a write before it counts; None: all there are, and at least one

    @property
    def shown(self) -> str:
        """What messages may say: where it is, and nothing that opens it."""
        places = ",".join(f"{host.name}:{host.port}" for host in self.hosts)
        scheme = "rediss" if self.tls else "redis"
        return f"{scheme}{'+sentinel' if self.service else ''}://{places}/{self.db}"

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def address_of(url: str) -> RedisAddress:
    parts = urlsplit(url)
    sentinel = parts.scheme in _SENTINEL_SCHEMES
    tls = parts.scheme.startswith("rediss")
    login, _, places = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    options = _options(parts, _OPTIONS | _OF_SENTINELS if sentinel else _OPTIONS)
    hosts = tuple(_host(place, _SENTINEL_PORT if sentinel else _PORT) for place in places.split(","))
    if sentinel and not options.get("service"):
        raise InvalidSetting(f"{parts.scheme}:// needs the name its sentinels know: add ?service=mymaster")
    if not sentinel and len(hosts) > 1:
        raise InvalidSetting("redis:// names one server; for several sentinels write redis+sentinel://")
    return RedisAddress(
        hosts=hosts,
        db=_db(parts.path),
        tls=tls,
        username=unquote(username) or None,
        password=unquote(password) or None,
        service=options.get("service"),
        prefix=_checked_prefix(options.get("prefix", PREFIX)),
        archive=options.get("archive"),
        sentinel_login=SentinelLogin(
            options.get("sentinel_username") or None, options.get("sentinel_password") or None, tls
        ),
        replicas=_replicas(options.get("replicas", "all" if sentinel else "0"), sentinel=sentinel),
    )


def _options(parts: SplitResult, known: set[str]) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - known)
    if unknown or parts.fragment:
        # A password whose & is not encoded reaches into the names.
        what = ", ".join(repr(name) for name in unknown if name.isidentifier()) or "what follows ? or #"
        raise InvalidSetting(f"{parts.scheme}:// does not know {what}; it knows: {', '.join(sorted(known))}")
    return options


def _host(place: str, port: int) -> Host:
    match = _HOST.fullmatch(place)
    if match is None:
        raise InvalidSetting("the URL names no server; write redis://host:6379/0")
    return Host(match["host"].strip("[]"), int(match["port"] or port))


def _db(path: str) -> int:
    name = path.strip("/")
    if "@" in name:
        raise InvalidSetting("the URL has an @ behind its server; encode a / in the password as %2F")
    if name and not name.isdecimal():
        raise InvalidSetting(f"{name!r} is not a Redis database; write a number, as in redis://host:6379/0")
    return int(name or 0)


def _replicas(number: str, *, sentinel: bool) -> int | None:
    if number == "all" and sentinel:
        return None
    if not number.isdecimal() or int(number) > _MOST_REPLICAS:
        raise InvalidSetting(f"replicas {number!r:.80} is not a number of replicas; write replicas=1")
    return int(number)


def _checked_prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise InvalidSetting(f"prefix {prefix!r:.80} is not a name: 1 to 64 letters, digits or _.:-")
    return prefix
