"""Examining a server for `qo doctor`. Nothing is written."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from qo.clock import system_clock
from qo.engines.redis.address import RedisAddress, address_of
from qo.engines.redis.lane_counts import counted
from qo.engines.redis.pool import RedisPool
from qo.engines.redis.scripts import FORMAT, ScriptRunner
from qo.engines.redis.stored_format import check_stored_format
from qo.engines.redis.task_fields import state_of
from qo.errors import InvalidSetting, Refused, StorageError
from qo.findings import Finding

_OLDEST = (5, 0)  # scripts are replicated by their effects from here on, so they may read the clock
_MENDED = {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}  # CVE-2025-49844, by release line
_SKEW = 1.0  # seconds
_PAGE = 500
_SETTINGS = ("maxmemory-policy", "maxmemory", "appendonly", "appendfsync", "min-replicas-to-write")


class _Server(NamedTuple):
    """What there is to know, all as text."""

    info: dict[str, str]
    settings: dict[str, str]  # empty where CONFIG is forbidden
    skew: float


async def examine(url: str) -> list[Finding]:
    address = address_of(url)
    lines = RedisPool(address)
    try:
        calls = ScriptRunner(lines, address.prefix)
        server = await _look(calls)
        return [
            Finding("server", True, f"{address.shown} answers"),
            await _format(calls, address),
            *_about(server, confirmed=address.replicas != 0),
            await _indexes(calls, f"{{{address.prefix}}}"),
            *([] if address.archive is None else [await _archive(address.archive)]),
        ]
    except StorageError as error:
        return [Finding("server", False, str(error))]
    finally:
        await lines.close()


async def _look(calls: ScriptRunner) -> _Server:
    before = system_clock()
    info, time, *settings = await calls.plain(("INFO",), ("TIME",), *(("CONFIG", "GET", name) for name in _SETTINGS))
    for reply in (info, time):
        if isinstance(reply, RedisError):
            raise StorageError(f"the server refused INFO or TIME: {reply}") from reply
    now = (before + system_clock()) / 2
    known = {
        name: reply[1].decode()
        for name, reply in zip(_SETTINGS, settings, strict=True)
        if isinstance(reply, list) and reply
    }
    rows = [line.partition(":") for line in info.decode().splitlines() if ":" in line]
    return _Server({name: value for name, _, value in rows}, known, int(time[0]) + int(time[1]) / 1e6 - now)


async def _format(calls: ScriptRunner, address: RedisAddress) -> Finding:
    try:
        await check_stored_format(calls, address.prefix, address.shown)
    except Refused as error:
        return Finding("format", False, str(error))
    return Finding("format", True, f"this qo knows the queue's format (its own is {FORMAT})")


async def _archive(url: str) -> Finding:
    try:
        from qo.engines.redis.archive import check_reachable  # noqa: PLC0415 - its driver is an extra

        await check_reachable(url)
    except ImportError:
        return Finding("archive", False, "archive= needs its driver: pip install 'qo-queue[postgres]'")
    except (StorageError, InvalidSetting) as error:
        return Finding("archive", False, str(error))
    return Finding("archive", True, "the archive answers")


def _about(server: _Server, *, confirmed: bool) -> Iterator[Finding]:
    yield _version(server.info)
    yield _memory(server.settings)
    yield from _persistence(server.settings)
    yield _replicas(server, confirmed=confirmed)
    yield _clock(server.skew)


def _version(info: dict[str, str]) -> Finding:
    if "valkey_version" in info:
        return _mended("Valkey", info["valkey_version"], {(7, 2): 11, (8, 0): 6, (8, 1): 4})
    return _mended("Redis", info.get("redis_version", "0.0.0"), _MENDED)


def _mended(name: str, version: str, mended: dict[tuple[int, int], int]) -> Finding:
    major, minor, patch = ([int(part) for part in version.split(".")[:3] if part.isdecimal()] + [0, 0, 0])[:3]
    line, shown = (major, minor), f"{name} {version}"
    if line < _OLDEST:
        return Finding("version", False, f"{shown} is too old; upgrade to 6.2 or newer")
    first = mended.get(line)
    if line > max(mended) or (first is not None and patch >= first):
        return Finding("version", True, shown)
    advice = f"upgrade to {major}.{minor}.{first}" if first is not None else "upgrade to a release line that is mended"
    return Finding(
        "version",
        None,
        f"{shown} may lack the fix of CVE-2025-49844 (code execution by Lua); {advice}, or ask your packager",
    )


def _memory(settings: dict[str, str]) -> Finding:
    policy = settings.get("maxmemory-policy")
    if policy is None:
        return Finding("memory", None, "CONFIG is not allowed here; make sure that maxmemory-policy is noeviction")
    if policy != "noeviction":
        return Finding("memory", False, f"maxmemory-policy is {policy}, so tasks may vanish; set it to noeviction")
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
            "persistence", None, f"appendfsync is {policy}: a power cut may lose the last seconds; always loses none"
        )
    else:
        yield Finding("persistence", True, "every write is on disk before it is answered")


def _replicas(server: _Server, *, confirmed: bool) -> Finding:
    role, replicas = server.info.get("role", "master"), int(server.info.get("connected_slaves", "0"))
    least = int(server.settings.get("min-replicas-to-write", "0"))
    if role != "master":
        return Finding(
            "replicas", False, "this is a replica and takes no writes; name the primary, or use redis+sentinel://"
        )
    if not replicas:
        return Finding("replicas", None, "there is no replica: tasks are lost with this machine")
    if not least:
        text = "a primary cut off from them takes writes that a failover loses; set min-replicas-to-write to 1"
        return Finding("replicas", None, f"{replicas} connected, but {text}")
    if not confirmed:
        text = "a write is answered before they have it, so a failover may lose it; add replicas=1 to the URL"
        return Finding("replicas", None, f"{replicas} connected, but {text}")
    return Finding("replicas", replicas >= least, f"{replicas} connected, {least} needed for a write")


def _clock(skew: float) -> Finding:
    if abs(skew) > _SKEW:
        return Finding(
            "clock", None, f"the server's clock is {skew:+.1f} s off ours; its clock counts, so set both by NTP"
        )
    return Finding("clock", True, f"the server's clock agrees with ours within {_SKEW:g} s")


async def _indexes(calls: ScriptRunner, prefix: str) -> Finding:
    """Every task stands in the one list that its status and lane name, and nothing else stands there."""
    states = {key: state async for key, state in _states(calls, prefix)}
    told = Counter(await counted(calls))
    real = Counter(states.values())
    wrong = sum((real - told).values()) + sum((told - real).values())
    if wrong:
        return Finding("counts", None, f"{wrong} tasks differ from their lists; look again when no worker is busy")
    return Finding("counts", True, f"the lists agree with the {len(states):,} tasks")


async def _states(calls: ScriptRunner, prefix: str) -> Any:
    cursor = b"0"
    while True:
        (answer,) = await calls.plain(("SCAN", cursor, "MATCH", f"{prefix}:task:*".replace("[", "\\["), "COUNT", _PAGE))
        cursor, keys = answer
        for key, state in zip(
            keys, await calls.plain(*(("HGET", key, "s") for key in keys)) if keys else [], strict=True
        ):
            if isinstance(state, bytes):
                yield key, state_of(state)
        if cursor == b"0":
            return
