"""Opens bucket layouts by URL. `?layout=` selects the layout, and further options configure it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from qo.bucket import Bucket
from qo.buckets import open_bucket
from qo.clock import Clock, parse_duration, system_clock
from qo.engine import Engine
from qo.engines.commit_loop import FlushedDatabase
from qo.engines.large_values import DEFAULT_PAYLOAD_LIMIT, LargeValuesEngine
from qo.engines.layout_detection import (
    CLOUD_LAYOUT,
    DEFAULT_LAYOUT,
    DetectedLayoutEngine,
    NamedLayoutEngine,
    check_layout,
    find_layout,
)
from qo.errors import InvalidSetting, StorageError
from qo.model import PAYLOAD_LIMIT, UNFINISHED, Filter
from qo.reports import Finding

# Environment variable by option. The URL takes precedence.
_VARIABLES = {
    "index_mode": "QO_INDEX_MODE",
    "ready_page_size": "QO_READY_PAGE_SIZE",
    "log_scan_page_size": "QO_LOG_SCAN_PAGE_SIZE",
    "scan_interval": "QO_SCAN_INTERVAL",
    "shards": "QO_SHARDS",
    "payload_limit": "QO_PAYLOAD_LIMIT",
}
_VERSIONED = {"tasks"}  # layouts whose history is in their objects' versions
_MAX_READ_TASKS, _MAX_NAMED_OBJECTS = 100, 5  # of an examination
_LIMIT = "payload_limit"  # an option of every layout
_OPTIONS = {
    "tasks": (*_VARIABLES,),
    "one": ("mode", _LIMIT),
    "sqlite": ("mode", "interval", "volume", _LIMIT),
    "log": ("shards", "submit", _LIMIT),
}
# Layouts for which these options have another meaning than the variable.
_WITHOUT_VARIABLE = {("log", "shards")}
_INLINE = {"log": 64 * 1024}  # bytes of a value that is kept with its task: each process has a copy of all tasks
# Options that no URL can name. After a machine was frozen together with its clocks, no request to a folder fails, so
# only the checkpoint shows what happened in the meantime. It is a small local file.
_IN_FOLDERS = {"log": {"trust": "0"}}
_LAYOUT_OPTIONS = {"layout", *(option for options in _OPTIONS.values() for option in options)}
_BUCKET_OPTIONS = {"endpoint", "region", "account", "anonymous", "connections", "timeout", "versions"}
_HEX = "0123456789abcdef"
_MAX_SHARD_COUNT = 256  # of a log
_MAX_PAGE_SIZE = 1000  # keys that a store lists in one request
_MAX_PAYLOAD_LIMIT = 1024**3  # bytes: several payloads are held in memory at a time


def from_url(url: str, *, clock: Clock = system_clock) -> Engine:
    address = parse(url, os.environ)[-1]
    given = None if clock is system_clock else clock  # None: the store's clock
    bucket = open_bucket(address, clock=given)
    if is_named(url):
        return NamedLayoutEngine(bucket, _build(url, bucket, given), parse(url, os.environ)[0])
    return DetectedLayoutEngine(
        bucket, lambda layout: _build(with_layout(url, layout), bucket, given), default_layout(url)
    )


def default_layout(url: str) -> str:
    """The layout of a new queue whose URL names none. An option that only the layout `tasks` has selects it."""
    parts = urlsplit(url)
    has_option = any(name in _VARIABLES and name != _LIMIT for name, _ in parse_qsl(parts.query))
    return DEFAULT_LAYOUT if parts.scheme == "file" or has_option else CLOUD_LAYOUT


def is_named(url: str) -> bool:
    """Whether the URL names the layout."""
    return any(name == "layout" for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True))


async def stored_layout(url: str) -> str | None:
    """The layout of the queue that the bucket of a URL holds, regardless of what the URL names.

    None: there is no queue.
    """
    return await find_layout(open_bucket(parse(url, os.environ)[-1]))


def with_layout(url: str, layout: str) -> str:
    """The URL with this layout added. It must not name one."""
    parts = urlsplit(url)
    return parts._replace(query=f"{parts.query}&layout={layout}" if parts.query else f"layout={layout}").geturl()


def _build(url: str, bucket: Bucket, given: Clock | None) -> Engine:
    layout, options, address = parse(url, os.environ)
    if urlsplit(address).scheme == "file":
        options |= _IN_FOLDERS.get(layout, {})
    limit = _number(_LIMIT, options.pop(_LIMIT, str(DEFAULT_PAYLOAD_LIMIT)), _MAX_PAYLOAD_LIMIT)
    engine = _LAYOUTS[layout](bucket, options, given)
    inline = _INLINE.get(layout, PAYLOAD_LIMIT)
    return LargeValuesEngine(engine, bucket, inline=inline, payload_limit=limit, clock=given or bucket.now)


class OwnedDatabase(NamedTuple):
    engine: Engine  # stores large values in objects next to the database
    database: FlushedDatabase


def open_database(
    bucket: Bucket,
    *,
    mode: str,
    interval: float | None,
    volume: float | None,
    retry_timeout: float,
    payload_limit: int,
    clock: Clock | None,
) -> OwnedDatabase:
    """Create an engine for one SQLite database in a bucket, which raises Conflict if it loses a race.

    The caller must open the engine. None selects the default of the mode.
    """
    from qo.engines.sqlite_object import DurabilityMode, SqliteObjectEngine  # noqa: PLC0415 - needs a driver

    given: dict[str, Any] = {} if volume is None else {"volume": volume}
    database = SqliteObjectEngine(
        bucket,
        mode=_choice("mode", mode, DurabilityMode),
        interval=interval,
        retry_timeout=retry_timeout,
        retries_conflicts=False,
        clock=clock,
        **given,
    )
    engine = LargeValuesEngine(
        database,
        bucket,
        payload_limit=payload_limit,
        retry_timeout=retry_timeout if mode == DurabilityMode.DURABLE else 0.0,
        clock=clock or bucket.now,
    )
    return OwnedDatabase(engine, database)


async def examine(url: str) -> list[Finding]:
    from qo.buckets.certify import certify  # noqa: PLC0415 - only the doctor needs it

    bucket = open_bucket(parse(url, os.environ)[-1])
    try:
        if is_named(url):
            await check_layout(bucket, parse(url, os.environ)[0])
        else:
            url = with_layout(url, await find_layout(bucket) or default_layout(url))
    except InvalidSetting as error:
        return [Finding("layout", False, str(error))]
    except StorageError:  # reported below
        url = url if is_named(url) else with_layout(url, default_layout(url))
    layout, options, address = parse(url, os.environ)
    findings = [Finding("layout", True, f"tasks are kept in the layout `{layout}`")]
    findings += await certify(bucket, address)
    if layout not in _VERSIONED:
        findings = [finding for finding in findings if finding.name != "versioning"]
    if all(finding.ok is not False for finding in findings[1:5]):  # only if the bucket can be read
        findings += await _contents(layout, options, bucket)
    return findings


async def _contents(layout: str, options: dict[str, str], bucket: Bucket) -> list[Finding]:
    """Whether a worker can read what the bucket holds."""
    if layout == "sqlite":
        from qo.engines.sqlite_object import examine as examine_database  # noqa: PLC0415

        return [await examine_database(bucket)]
    if layout == "log":
        from qo.engines.replicated_log.doctor import examine_log  # noqa: PLC0415

        return await examine_log(bucket)
    return [await _tasks_contents(layout, options, bucket)]


async def _tasks_contents(layout: str, options: dict[str, str], bucket: Bucket) -> Finding:
    options.pop(_LIMIT, None)
    engine, foreign = _LAYOUTS[layout](bucket, options, None), list[str]()
    try:
        await engine.open()
        await engine.find(Filter(statuses=tuple(UNFINISHED)), limit=_MAX_READ_TASKS)
        await engine.read_note("control")
        if isinstance(engine, Inspectable):
            foreign = sorted(await engine.inspect(_MAX_READ_TASKS))
    except StorageError as error:
        return Finding("contents", False, str(error))
    finally:
        await engine.close()
    if foreign:
        shown = ", ".join(foreign[:_MAX_NAMED_OBJECTS]) + (", …" if len(foreign) > _MAX_NAMED_OBJECTS else "")
        return Finding("contents", None, f"objects that are not qo's are ignored; move them elsewhere: {shown}")
    return Finding("contents", True, "the stored tasks can be read")


@runtime_checkable
class Inspectable(Protocol):
    """A layout of many objects, some of which may belong to other applications."""

    async def inspect(self, limit: int) -> frozenset[str]:
        """Read up to `limit` tasks and return the keys under the layout's prefixes that could not be read."""


def is_missing(url: str) -> bool:
    """Whether the URL names a directory that does not exist. Only a request tells whether a bucket does."""
    parts = urlsplit(url)
    return parts.scheme == "file" and not parts.netloc and not Path(unquote(parts.path)).exists()


def parse(url: str, variables: Mapping[str, str]) -> tuple[str, dict[str, str], str]:
    """The layout, its options, and the URL of the bucket without them."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = {name: value for name, value in query if name in _LAYOUT_OPTIONS}
    layout = given.pop("layout", default_layout(url))
    if layout not in _OPTIONS:
        raise InvalidSetting(f"layout={layout!r} is not one of {', '.join(_OPTIONS)}")
    for name, _ in query:
        if name not in {"layout", *_OPTIONS[layout], *_BUCKET_OPTIONS}:
            others = [f"layout={other}" for other, theirs in _OPTIONS.items() if name in theirs]
            if others and not is_named(url):
                raise InvalidSetting(f"{name!r} needs the layout in the URL: {' or '.join(others)}")
            known = ", ".join(_OPTIONS[layout])
            raise InvalidSetting(f"{name!r:.80} is not an option of the layout `{layout}`, which has {known}")
    from_environment = {name: variables[variable] for name, variable in _VARIABLES.items() if variables.get(variable)}
    options = {
        name: value
        for name, value in from_environment.items()
        if name in _OPTIONS[layout] and (layout, name) not in _WITHOUT_VARIABLE
    } | given
    rest = urlencode([(name, value) for name, value in query if name not in _LAYOUT_OPTIONS])
    return layout, options, parts._replace(query=rest).geturl()


def _tasks(bucket: Bucket, options: Mapping[str, str], clock: Clock | None) -> Engine:
    from qo.engines.object_per_task import IndexMode, ObjectPerTaskEngine, TasksOptions  # noqa: PLC0415

    def chosen(name: str, value: str) -> Any:
        match name:
            case "index_mode":
                return _choice(name, value, IndexMode)
            case "scan_interval":
                return _seconds(name, value)
            case "shards":
                return _digits(name, value)
        return _number(name, value, _MAX_PAGE_SIZE)

    return ObjectPerTaskEngine(
        bucket, TasksOptions(**{name: chosen(name, value) for name, value in options.items()}), clock=clock
    )


def _one(bucket: Bucket, options: Mapping[str, str], clock: Clock | None) -> Engine:
    from qo.engines.one_object import CommitMode, OneObjectEngine  # noqa: PLC0415

    return OneObjectEngine(bucket, mode=_choice("mode", options.get("mode", CommitMode.GROUP), CommitMode), clock=clock)


def _sqlite(bucket: Bucket, options: Mapping[str, str], clock: Clock | None) -> Engine:
    from qo.engines.sqlite_object import DurabilityMode, SqliteObjectEngine  # noqa: PLC0415

    mode = _choice("mode", options.get("mode", DurabilityMode.DURABLE), DurabilityMode)
    chosen: dict[str, Any] = {
        name: _fraction(name, options[name]) for name in ("interval", "volume") if name in options
    }
    return SqliteObjectEngine(bucket, mode=mode, clock=clock, **chosen)


def _log(bucket: Bucket, options: Mapping[str, str], clock: Clock | None) -> Engine:
    from qo.buckets.thread_pool import ThreadPool  # noqa: PLC0415
    from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine, SubmitMode  # noqa: PLC0415

    submit = _choice("submit", options.get("submit", SubmitMode.AUTO), SubmitMode)
    chosen: dict[str, Any] = {name: float(options[name]) for name in ("trust",) if name in options}
    if "shards" in options:
        chosen["shard_count"] = _shard_count(options["shards"])
    return ReplicatedLogEngine(
        bucket, LogOptions(submit=submit, **chosen), clock=clock, new_runner=lambda: ThreadPool(1).run
    )


_LAYOUTS: dict[str, Callable[[Bucket, Mapping[str, str], Clock | None], Engine]] = {
    "tasks": _tasks,
    "one": _one,
    "sqlite": _sqlite,
    "log": _log,
}


def _choice(name: str, value: str, kind: Any) -> Any:
    if value not in set(kind):
        raise InvalidSetting(f"{name}={value!r} is not one of {', '.join(kind)}")
    return kind(value)


def _number(name: str, value: str, maximum: int) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= maximum:
        raise InvalidSetting(f"{name}={value!r} is not a whole number from 1 to {maximum}")
    return int(value)


def _shard_count(value: str) -> int:
    try:
        return _number("shards", value, _MAX_SHARD_COUNT)
    except InvalidSetting as error:
        raise InvalidSetting(
            f"{error}: how many shards a new log has (`qo worker --shards` is only for the layout `tasks`)"
        ) from None


def _fraction(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidSetting(f"{name}={value!r:.40} is not a number") from None


def _seconds(name: str, value: str) -> float:
    seconds = parse_duration(value)
    if not seconds:
        raise InvalidSetting(f"{name}={value!r:.40} is not a duration above 0 such as 90, 90s, 5m, 2h or 7d")
    return seconds


def _digits(name: str, value: str) -> tuple[str, ...]:
    """Parse `0,8,f` or `0-7`."""
    digits: set[str] = set()
    for part in value.lower().split(","):
        first, _, last = part.strip().partition("-")
        if len(first) != 1 or first not in _HEX or len(last) > 1 or last not in _HEX:
            raise InvalidSetting(f"{name}={value!r:.40} is not a list of hexadecimal digits such as 0,8,f or 0-7")
        digits.update(_HEX[_HEX.index(first) : _HEX.index(last or first) + 1])
    if not digits:
        raise InvalidSetting(f"{name}={value!r:.40} names no digit: write the lower digit first, as in 0-7")
    return tuple(sorted(digits))
