"""Engines by URL. An engine's module, and with it its driver, is imported on first use."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from qo.engine import Engine
from qo.errors import InvalidSetting
from qo.formats import Schema
from qo.reports import Finding
from qo.safe_text import hide_password
from qo.storages import ObjectStorage


class _EngineModule(NamedTuple):
    module: str
    extra: str = ""  # the extra to install for its driver


ENGINES = {
    "memory": _EngineModule("memory"),
    "sqlite": _EngineModule("sqlite"),
    "postgresql": _EngineModule("postgres", "postgres"),
    "postgres": _EngineModule("postgres", "postgres"),
    "redis": _EngineModule("redis", "redis"),
    "rediss": _EngineModule("redis", "redis"),
    "redis+sentinel": _EngineModule("redis", "redis"),
    "rediss+sentinel": _EngineModule("redis", "redis"),
    "file": _EngineModule("layouts", "s3"),
    "s3": _EngineModule("layouts", "s3"),
    "gs": _EngineModule("layouts", "s3"),
    "az": _EngineModule("layouts", "s3"),
    "http": _EngineModule("http", "http"),
    "https": _EngineModule("http", "http"),
}


def open_engine(url: str, **settings: Any) -> Engine:
    """Create the engine that a URL names. The caller must open it."""
    engine: Engine = _module(url).from_url(url, **settings)
    return engine


def open_storage(storage: ObjectStorage, mode: str = "group") -> Engine:
    """Create an engine for a whole queue in one object of the caller's storage. The caller must open it."""
    from qo.engines.one_object import CommitMode, OneObjectEngine, StorageBucket  # noqa: PLC0415 - rarely needed

    if not isinstance(storage, ObjectStorage):
        raise InvalidSetting(f"{storage!r:.80} is neither a URL nor a storage: a storage has async read() and write()")
    if mode not in set(CommitMode):
        raise InvalidSetting(f"mode={mode!r:.40} is not one of {', '.join(CommitMode)}")
    return OneObjectEngine(StorageBucket(storage), mode=CommitMode(mode))


async def examine(url: str) -> list[Finding]:
    """Examine a store without changing it."""
    findings: list[Finding] = await _module(url).examine(url)
    return findings


async def schema_of(url: str) -> Schema | None:
    """The schema version of a store's tables, without changing them. None: the store has no tables."""
    read_schema = getattr(_module(url), "schema_of", None)
    schema: Schema | None = None if read_schema is None else await read_schema(url)
    return schema


def is_missing(url: str) -> bool:
    """Whether opening this store would create it. False also if only opening it could tell."""
    check = getattr(_module(url), "is_missing", None)
    return check is not None and bool(check(url))


def with_options(url: str, options: Mapping[str, str]) -> str:
    """The URL of a bucket, with these layout options in place of the ones it names."""
    parts = urlsplit(url)
    if ENGINES.get(parts.scheme) != ENGINES["s3"]:
        raise InvalidSetting(f"{', '.join(options)}: only for buckets and folders, not for {hide_password(url)}")
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in options]
    return parts._replace(query=urlencode([*query, *options.items()], safe=",/:")).geturl()


def _module(url: str) -> Any:
    scheme = url.partition("://")[0].lower()
    entry = ENGINES.get(scheme)
    if entry is None:
        known = ", ".join(f"{name}://" for name in ENGINES)
        raise InvalidSetting(f"{hide_password(url)!r} is not the URL of a store; it must begin with one of {known}")
    try:
        urlsplit(url)
    except ValueError as error:  # such as an IPv6 address without its closing bracket
        raise InvalidSetting(f"{hide_password(url)!r} is not a URL: {error}") from None
    try:
        return import_module(f"qo.engines.{entry.module}")
    except ImportError as error:
        if not entry.extra:
            raise
        raise InvalidSetting(f"{scheme}:// needs its driver: pip install 'qo-queue[{entry.extra}]'") from error
