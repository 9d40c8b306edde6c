"""Examines a server for `qo doctor`. Writes nothing."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from redis.exceptions import RedisError

from qo.clock import system_clock
from qo.engines.redis.address import RedisAddress, address_of
from qo.engines.redis.pool import RedisPool
from qo.engines.redis.scripts import FORMAT, ScriptRunner
from qo.engines.redis.task_fields import lane_and_status
from qo.errors import InvalidSetting, Refused, StorageError
from qo.formats import Schema
from qo.model import Status, plural
from qo.reports import Finding

_MIN_VERSION = (6, 2)  # of ZADD GT
# The first patch releases with the fix of CVE-2025-49844, by major and minor version.
_FIXED_REDIS = {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}
_FIXED_VALKEY = {(7, 2): 11, (8, 0): 6, (8, 1): 4}
_MAX_SKEW = 1.0
_SCAN_SIZE = 500
_SETTINGS = ("maxmemory-policy", "maxmemory", "appendonly", "appendfsync", "min-replicas-to-write")


class _Server(NamedTuple):
    info: dict[str, str]
    settings: dict[str, str]  # empty if CONFIG is forbidden
    skew: float  # of the server's clock against this machine's, in seconds


async def examine(url: str) -> list[Finding]:
    address = address_of(url)
    pool = RedisPool(address)
    try:
        scripts = ScriptRunner(pool, address.prefix)
        server = await _read_server(scripts)
        return [
            Finding("server", True, f"{address.shown_url} responds"),
            await _format(scripts, address),
            *_about(server, is_confirmed=address.replicas != 0),
            await _indexes(scripts, f"{{{address.prefix}}}"),
            *([] if address.archive is None else [await _archive(address.archive)]),
        ]
    except StorageError as error:
        return [Finding("server", False, str(error))]
    finally:
        await pool.close()


async def schema_of(url: str) -> Schema | None:
    """The format of a queue, without opening it, which would migrate it. None if there is no queue."""
    address = address_of(url)
    pool = RedisPool(address)
    try:
        found = await ScriptRunner(pool, address.prefix).stored_format()
    finally:
        await pool.close()
    return None if found is None else Schema(found, FORMAT)


async def _read_server(scripts: ScriptRunner) -> _Server:
    before = system_clock()
    info, time, *settings = await scripts.send(("INFO",), ("TIME",), *(("CONFIG", "GET", name) for name in _SETTINGS))
    for reply in (info, time):
        if isinstance(reply, RedisError):
            raise StorageError(f"the server refused INFO or TIME: {reply}") from reply
    now = (before + system_clock()) / 2
    readable = {
        name: reply[1].decode()
        for name, reply in zip(_SETTINGS, settings, strict=True)
        if isinstance(reply, list) and reply
    }
    rows = [line.partition(":") for line in info.decode().splitlines() if ":" in line]
    return _Server({name: value for name, _, value in rows}, readable, int(time[0]) + int(time[1]) / 1e6 - now)


async def _format(scripts: ScriptRunner, address: RedisAddress) -> Finding:
    try:
        await scripts.check_format(f"{address.shown_url}: the queue {address.prefix}")
    except Refused as error:
        return Finding("format", False, str(error))
    stored = await scripts.stored_format()
    if stored is not None and stored < FORMAT:
        return Finding("format", None, f"the queue has not been migrated to format {FORMAT}; run qo migrate")
    return Finding("format", True, f"this qo knows the queue's format (its own is {FORMAT})")


async def _archive(url: str) -> Finding:
    try:
        from qo.engines.redis.archive import check_reachable  # noqa: PLC0415 - its driver is an extra

        await check_reachable(url)
    except ImportError:
        return Finding("archive", False, "archive= needs its driver: pip install 'qo-queue[postgres]'")
    except (StorageError, InvalidSetting) as error:
        return Finding("archive", False, str(error))
    return Finding("archive", True, "the archive responds")


def _about(server: _Server, *, is_confirmed: bool) -> Iterator[Finding]:
    yield _version(server.info)
    yield _memory(server.settings)
    yield from _persistence(server.settings)
    yield _replicas(server, is_confirmed=is_confirmed)
    yield _clock(server.skew)


def _version(info: dict[str, str]) -> Finding:
    if "valkey_version" in info:
        return _check_version("Valkey", info["valkey_version"], _FIXED_VALKEY)
    return _check_version("Redis", info.get("redis_version", "0.0.0"), _FIXED_REDIS)


def _check_version(name: str, version: str, fixed: dict[tuple[int, int], int]) -> Finding:
    major, minor, patch = ([int(part) for part in version.split(".")[:3] if part.isdecimal()] + [0, 0, 0])[:3]
    text = f"{name} {version}"
    if (major, minor) < _MIN_VERSION:
        return Finding("version", False, f"{text} is too old; upgrade to 6.2 or newer")
    first_fixed = fixed.get((major, minor))
    if (major, minor) > max(fixed) or (first_fixed is not None and patch >= first_fixed):
        return Finding("version", True, text)
    advice = "upgrade to a version with the fix" if first_fixed is None else f"upgrade to {major}.{minor}.{first_fixed}"
    return Finding(
        "version",
        None,
        f"{text} may lack the fix of CVE-2025-49844 (code execution by Lua); {advice}, or ask your packager",
    )


def _memory(settings: dict[str, str]) -> Finding:
    policy = settings.get("maxmemory-policy")
    if policy is None:
        return Finding("memory", None, "CONFIG is not allowed here; make sure that maxmemory-policy is noeviction")
    if policy != "noeviction":
        return Finding(
            "memory", False, f"maxmemory-policy is {policy}, so Redis may delete tasks; set it to noeviction"
        )
    limit = int(settings.get("maxmemory", "0"))
    return Finding("memory", True, f"noeviction, limit {limit:,} bytes" if limit else "noeviction, no limit")


def _persistence(settings: dict[str, str]) -> Iterator[Finding]:
    if "appendonly" not in settings:
        yield Finding("persistence", None, "CONFIG is not allowed here; make sure that appendonly is yes")
    elif settings["appendonly"] != "yes":
        yield Finding(
            "persistence", None, "appendonly is off: a crash loses every task since the last snapshot; set it to yes"
        )
    elif (policy := settings.get("appendfsync")) != "always":
        yield Finding(
            "persistence",
            None,
            f"appendfsync is {policy}: a power failure may lose the last seconds; `always` loses nothing",
        )
    else:
        yield Finding("persistence", True, "every write is on disk before it is acknowledged")


def _replicas(server: _Server, *, is_confirmed: bool) -> Finding:
    role, replicas = server.info.get("role", "master"), int(server.info.get("connected_slaves", "0"))
    required = int(server.settings.get("min-replicas-to-write", "0"))
    if role != "master":
        return Finding(
            "replicas", False, "this is a replica and accepts no writes; name the primary, or use redis+sentinel://"
        )
    if not replicas:
        return Finding("replicas", None, "there is no replica: if this machine is lost, so are the tasks")
    if not required:
        text = "a primary without contact to them accepts writes that a failover loses; set min-replicas-to-write to 1"
        return Finding("replicas", None, f"{replicas} connected, but {text}")
    if not is_confirmed:
        text = "writes are acknowledged before they have them, so a failover may lose some; add replicas=1 to the URL"
        return Finding("replicas", None, f"{replicas} connected, but {text}")
    return Finding("replicas", replicas >= required, f"{replicas} connected, {required} required for a write")


def _clock(skew: float) -> Finding:
    if abs(skew) > _MAX_SKEW:
        return Finding(
            "clock", None, f"the server's clock differs from this machine's by {skew:+.1f} s; synchronize both with NTP"
        )
    return Finding("clock", True, f"the server's clock agrees with this machine's within {_MAX_SKEW:g} s")


async def _indexes(scripts: ScriptRunner, prefix: str) -> Finding:
    """Compare the sizes of the indexes with the tasks themselves."""
    tasks = Counter([found async for found in _lanes_and_statuses(scripts, prefix)])
    indexed = Counter(await scripts.count_lanes())
    wrong = sum((tasks - indexed).values()) + sum((indexed - tasks).values())
    if wrong:
        return Finding("counts", None, f"{plural(wrong)} in a wrong index; check again when no worker is running")
    return Finding("counts", True, f"the indexes agree with {plural(sum(tasks.values()))}")


async def _lanes_and_statuses(scripts: ScriptRunner, prefix: str) -> AsyncIterator[tuple[bytes, Status]]:
    cursor, pattern, seen = b"0", f"{prefix}:task:*".replace("[", "\\["), set[bytes]()
    while True:
        (answer,) = await scripts.send(("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_SIZE))
        cursor, keys = answer
        new = [key for key in dict.fromkeys(keys) if key not in seen]  # SCAN may return a key more than once
        seen.update(new)
        states = await scripts.send(*(("HGET", key, "s") for key in new)) if new else []
        for state in states:
            if isinstance(state, bytes):
                yield lane_and_status(state)
        if cursor == b"0":
            return
