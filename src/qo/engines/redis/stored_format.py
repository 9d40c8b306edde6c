"""The format of a queue in Redis, kept beside its tasks. Every script checks it again: see `lua/common.lua`."""

from typing import Any

from redis.exceptions import RedisError

from qo.engines.redis.calls import FORMAT, Calls
from qo.formats import Format, check_format, format_of

ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and keep


async def check_stored_format(calls: Calls, prefix: str, shown: str) -> None:
    """Raise Refused if the queue is of a newer qo which this one must not touch."""
    (fields,) = await calls.plain(("HGETALL", f"{{{prefix}}}:format"))
    if not isinstance(fields, RedisError) and fields:  # else the first call that needs the server says why it refuses
        check_format(f"{shown}: the queue {prefix}", _format(fields), FORMAT)


async def record_format(calls: Calls, prefix: str) -> None:
    """Write it if there is none, or an older one. A user who may only read leaves that to others."""
    found = format_of(FORMAT, additive=ADDITIVE)
    key, fields = f"{{{prefix}}}:format", ("format", found.format, "since", found.since, "qo", found.qo)
    (stored,) = await calls.plain(("HGET", key, "format"))
    if stored is None or (isinstance(stored, bytes) and int(stored) < found.format):
        await calls.plain(("HSET", key, *fields), writing=True)


def _format(fields: list[bytes]) -> Format:
    values: dict[str, Any] = {
        name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)
    }
    return Format(format=int(values["format"]), since=int(values.get("since", 0)), qo=values.get("qo", ""))
