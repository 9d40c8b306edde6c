"""The format of a queue in Redis, kept beside its tasks. Every script checks it again: see `lua/prelude.lua`."""

from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from qo.engines.redis.scripts import FORMAT, ScriptRunner
from qo.errors import StorageError
from qo.formats import Format, check_format


async def check_stored_format(calls: ScriptRunner, prefix: str, shown: str) -> None:
    """Raise Refused if the queue is of a newer qo which this one must not touch."""
    (fields,) = await calls.plain(("HGETALL", f"{{{prefix}}}:format"))
    if not isinstance(fields, RedisError) and fields:  # else the first call that needs the server says why it refuses
        check_format(f"{shown}: the queue {prefix}", _format(fields), FORMAT)


async def record_format(calls: ScriptRunner, prefix: str) -> None:
    """Bring a queue that has none, or an older one, to the present. If that is refused, the next write does it."""
    (stored,) = await calls.plain(("HGET", f"{{{prefix}}}:format", "format"))
    if stored is None or (isinstance(stored, bytes) and int(stored) < FORMAT):
        with suppress(StorageError):
            await calls.one("migrate")


def _format(fields: list[bytes]) -> Format:
    values: dict[str, Any] = {
        name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)
    }
    return Format(format=int(values["format"]), since=int(values.get("since", 0)), qo=values.get("qo", ""))
