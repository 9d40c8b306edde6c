"""Engines by URL. Each is imported only when asked for, so its driver is only needed then."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from qo.engine import Engine
from qo.engines.findings import Finding
from qo.engines.schemas import Schema
from qo.errors import InvalidSetting
from qo.storages import ObjectStorage
from qo.url_secrets import hide_password


class _Room(NamedTuple):
    module: str
    extra: str = ""  # what to install for it


ROOMS = {
    "memory": _Room("memory"),
    "sqlite": _Room("sqlite"),
    "postgresql": _Room("postgres", "postgres"),
    "postgres": _Room("postgres", "postgres"),
    "redis": _Room("redis", "redis"),
    "rediss": _Room("redis", "redis"),
    "redis+sentinel": _Room("redis", "redis"),
    "rediss+sentinel": _Room("redis", "redis"),
    "file": _Room("layouts", "s3"),
    "s3": _Room("layouts", "s3"),
    "gs": _Room("layouts", "s3"),
    "az": _Room("layouts", "s3"),
    "http": _Room("http", "http"),
    "https": _Room("http", "http"),
}


def open_engine(url: str, **settings: Any) -> Engine:
    """The engine a URL names, not yet opened."""
    engine: Engine = _module(url).from_url(url, **settings)
    return engine


def open_storage(storage: ObjectStorage, mode: str = "group") -> Engine:
    """A whole queue in one object of the caller's own storage, not yet opened."""
    from qo.engines.one_object import CommitMode, OneObjectEngine, StorageBucket  # noqa: PLC0415 - only such a queue needs it

    if not isinstance(storage, ObjectStorage):
        raise InvalidSetting(f"{storage!r:.80} is neither a URL nor a storage: a storage has async read() and write()")
    if mode not in set(CommitMode):
        raise InvalidSetting(f"mode={mode!r:.40} is not one of {', '.join(CommitMode)}")
    return OneObjectEngine(StorageBucket(storage), mode=CommitMode(mode))


async def examine(url: str) -> list[Finding]:
    """Look at a store without changing anything in it."""
    findings: list[Finding] = await _module(url).examine(url)
    return findings


async def schema_of(url: str) -> Schema | None:
    """How far a store's tables are, without changing them. None: it has no tables."""
    look = getattr(_module(url), "schema_of", None)
    schema: Schema | None = None if look is None else await look(url)
    return schema


def is_missing(url: str) -> bool:
    """Whether opening this store would create it. False also where that cannot be told without opening it."""
    look = getattr(_module(url), "is_missing", None)
    return look is not None and bool(look(url))


def with_options(url: str, options: Mapping[str, str]) -> str:
    """The URL of a bucket, with these options of its layout instead of what it says of them."""
    parts = urlsplit(url)
    if ROOMS.get(parts.scheme) != ROOMS["s3"]:
        raise InvalidSetting(f"{', '.join(options)}: only for buckets and folders, not for {hide_password(url)}")
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in options]
    return parts._replace(query=urlencode([*query, *options.items()], safe=",/:")).geturl()


def _module(url: str) -> Any:
    scheme = url.partition("://")[0].lower()
    room = ROOMS.get(scheme)
    if room is None:
        known = ", ".join(f"{name}://" for name in ROOMS)
        raise InvalidSetting(f"{hide_password(url)!r} is not a queue; a URL begins with one of {known}")
    try:
        return import_module(f"qo.engines.{room.module}")
    except ImportError as error:
        if not room.extra:
            raise
        raise InvalidSetting(f"{scheme}:// needs its driver: pip install 'qo-queue[{room.extra}]'") from error
