"""Runs the Lua scripts, and finds out what became of a call whose connection broke.

Such a call is repeated with the same nonce: a script that has already run finds its receipt and returns the same answer
again. So a call returns the true answer, or raises OutcomeUnknown.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, RedisError

from qo.backoff import Backoff
from qo.clock import monotonic_clock
from qo.damage import Damage, DamageLog, encode_damage
from qo.engines.redis.direct_pool import DirectPool, run_blocking
from qo.engines.redis.pool import Doubtful, RedisPool, Unsent, pack_command
from qo.engines.redis.task_fields import STATUSES
from qo.errors import NewerFormat, OutcomeUnknown, Refused, StorageError
from qo.formats import Format, check_format, format_of
from qo.model import Status

ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and preserve
FORMAT = 4  # of the data that the scripts read and write; see docs/formats.md

_RETRY_DEADLINE = 6.0  # seconds to find out what became of a call; receipts are kept for longer
_MIN_RETRY_DELAY, _MAX_RETRY_DELAY = 0.02, 0.5
_MAX_EXCHANGE_SIZE = 4 << 20  # bytes, so that a slow network can carry them within the response timeout
_LANES_PER_COUNT = 500  # more in one script would block the server for too long
_TASKS_PER_COUNT = 2000  # of a batch; likewise
_MAX_BATCH_COUNTS = 2  # at the same time; a list counts a hundred batches, and claims must not wait for all of them
_LANES_PER_PAGE, _TASKS_PER_STEP = 100, 1000  # of a migration; likewise
_READ_ONLY = {"get", "find", "count", "count_batch"}
_FAST_PATHS = {"add": "single_add"}  # run before the prelude, and end the script or leave everything to it
_LIBRARIES = {  # in order, with the scripts that use them; every script uses the prelude
    "heads": {"add", "apply", "claim", "set_aside", "migrate"},
    "current": {"add", "apply", "claim", "set_aside"},
    "merge": {"claim", "find"},
}


class Script(NamedTuple):
    text: str
    sha: str
    writes: bool


@cache
def script(name: str) -> Script:
    folder = files("qo.engines.redis") / "lua"
    parts = [*_fast_path(name), "prelude", *(library for library, users in _LIBRARIES.items() if name in users), name]
    known = format_of(FORMAT, additive=ADDITIVE)
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)
    for placeholder, value in (("{format}", known.format), ("{since}", known.since), ("{qo}", known.qo)):
        text = text.replace(placeholder, str(value))
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest(), name not in _READ_ONLY)


def _fast_path(name: str) -> list[str]:
    return [_FAST_PATHS[name]] if name in _FAST_PATHS else []


class ScriptRunner:
    def __init__(self, pool: RedisPool | DirectPool, prefix: str) -> None:
        self._pool = pool
        self._key = f"{{{prefix}}}"
        self._damage_log = DamageLog()
        self._batch_counts = asyncio.Semaphore(_MAX_BATCH_COUNTS)

    async def run(self, name: str, *arguments: Any) -> Any:
        (answer,) = await self.run_batches(name, [arguments])
        return answer

    async def run_batches(self, name: str, batches: Sequence[Sequence[Any]]) -> list[Any]:
        """Run a script once per batch, in order, in as few exchanges as their size allows."""
        answers: list[Any] = []
        for group in _exchanges(batches):
            try:
                answers += await self._run(script(name), group)
            except OutcomeUnknown:
                raise
            except StorageError as error:
                if answers:  # the batches before were written
                    raise OutcomeUnknown(str(error)) from error
                raise
        return answers

    def run_directly(self, name: str, *arguments: Any) -> Any:
        """As `run`, blocking, with a DirectPool. A reply to the first attempt, the usual case, takes few steps."""
        chosen = script(name)
        try:
            command = pack_command("EVALSHA", chosen.sha, 1, self._key, *arguments)
            (reply,) = self._pool.exchange_packed(command, 1)  # type: ignore[union-attr]  # of a DirectPool
        except Unsent as error:
            raise self._pool.error(_cause(error)) from error
        except Doubtful:
            (reply,) = run_blocking(self._run(chosen, [arguments], may_have_run=True))
        if isinstance(reply, NoScriptError):
            (reply,) = run_blocking(self._run(chosen, [arguments]))
        if isinstance(reply, RedisError):
            raise self._pool.error(reply) from reply
        return reply

    async def _run(self, script: Script, batches: Sequence[Sequence[Any]], *, may_have_run: bool = False) -> list[Any]:
        commands = [("EVALSHA", script.sha, 1, self._key, *arguments) for arguments in batches]
        replies = await self._send(commands, script, writing=script.writes, may_have_run=may_have_run)
        refused = [reply for reply in replies if isinstance(reply, RedisError)]
        if refused:
            kind = StorageError if len(refused) == len(replies) else OutcomeUnknown
            raise self._pool.error(refused[0], kind) from refused[0]
        return replies

    async def send(self, *commands: tuple[Any, ...], writing: bool = False) -> list[Any]:
        """Send commands that are safe to repeat. A refused command has its error in the list."""
        return await self._send(commands, writing=writing)

    async def _send(
        self,
        commands: Sequence[tuple[Any, ...]],
        script: Script | None = None,
        *,
        writing: bool = False,
        may_have_run: bool = False,
    ) -> list[Any]:
        """Repeat an exchange until its outcome is certain. Raises OutcomeUnknown after the deadline.

        `may_have_run`: an earlier attempt may have executed the commands.
        """
        backoff = Backoff(_MIN_RETRY_DELAY, _MAX_RETRY_DELAY)
        until = monotonic_clock() + _RETRY_DEADLINE
        while True:
            try:
                replies = await self._exchange(commands, script, writing=writing)
            except Unsent as error:
                if not may_have_run:
                    raise self._pool.error(_cause(error)) from error
                last = _cause(error)
            except Doubtful as error:
                may_have_run, last = True, _cause(error)
            else:
                refusal = next((reply for reply in replies if isinstance(reply, RedisError)), None)
                if refusal is None or not may_have_run:
                    return replies
                last = refusal  # only this attempt was refused; an earlier one may have run
            if monotonic_clock() + backoff.upcoming > until:
                raise self._pool.error(last, OutcomeUnknown) from last
            await self._pool.sleep(backoff.next())

    async def _exchange(
        self, commands: Sequence[tuple[Any, ...]], script: Script | None, *, writing: bool
    ) -> list[Any]:
        replies = await self._pool.exchange(*commands, writing=writing)
        if script is not None and any(isinstance(reply, NoScriptError) for reply in replies):
            load = ("SCRIPT", "LOAD", script.text)
            loaded, *replies = await self._pool.exchange(load, *commands, writing=writing)
            if isinstance(loaded, RedisError):
                return [loaded]
        return replies

    # --- operations that the engine and the doctor share

    async def set_aside(self, damage: Damage) -> None:
        """Remove tasks that cannot be read from all indexes, and report them."""
        if damage:
            batches = [(task_id, encode_damage(task_id, problem)) for task_id, problem in damage.items()]
            await self.run_batches("set_aside", batches)
            self._damage_log.report(damage)

    async def count_lanes(self) -> dict[tuple[bytes, Status], int]:
        """The number of tasks by lane and status. Omits zeros."""
        counts: dict[tuple[bytes, Status], int] = {}
        statuses, offset = list(STATUSES), 0
        while statuses:
            answers = await self.run_batches("count", [(status.value, offset, _LANES_PER_COUNT) for status in statuses])
            for status, rows in zip(statuses, answers, strict=True):
                counts |= {(lane, status): number for lane, number in zip(rows[::2], rows[1::2], strict=True) if number}
            statuses = [
                status for status, rows in zip(statuses, answers, strict=True) if len(rows) == 2 * _LANES_PER_COUNT
            ]
            offset += _LANES_PER_COUNT
        return counts

    async def count_batch(self, batch: str) -> dict[tuple[bytes, Status], int]:
        """As `count_lanes`, for the tasks of a batch."""
        async with self._batch_counts:
            return await self._count_batch(batch)

    async def _count_batch(self, batch: str) -> dict[tuple[bytes, Status], int]:
        counts: Counter[tuple[bytes, Status]] = Counter()
        created_at, last_id, is_full = b"", b"", True
        while is_full:
            number, created_at, last_id, *rows = await self.run(
                "count_batch", batch, _TASKS_PER_COUNT, created_at, last_id
            )
            for key, size in zip(rows[::2], rows[1::2], strict=True):
                status, _, lane = key.partition(b" ")
                counts[lane, Status(status.decode())] += size
            is_full = number == _TASKS_PER_COUNT
        return counts

    async def check_format(self, queue: str) -> None:
        """Raise NewerFormat if a newer qo has written this queue in a format that this build must not use.

        Every script checks the format again: see `lua/prelude.lua`. If this user may not read the format, the first
        call that needs the server reports that.
        """
        (fields,) = await self.send(("HGETALL", f"{self._key}:format"))
        if not isinstance(fields, RedisError) and fields:
            check_format(queue, _format(fields), FORMAT)

    async def stored_format(self) -> int | None:
        """The format of the queue, or the one before it if the migration to it is not finished. None: not known."""
        (stored,) = await self.send(("HMGET", f"{self._key}:format", "format", "migrating"))
        if isinstance(stored, RedisError) or stored[0] is None:
            return None
        return int(stored[0]) if stored[1] is None else int(stored[0]) - 1

    async def migrate(self) -> None:
        """Bring a queue of an earlier format to this one, in short steps that other processes may repeat or continue.

        If a queue is new and this user may not write its format, the first write reports that.
        """
        (stored,) = await self.send(("HMGET", f"{self._key}:format", "format", "migrating"))
        if isinstance(stored, RedisError):
            return  # as in `check_format`
        format_, migrating = stored
        if format_ is not None and (int(format_) > FORMAT or (int(format_) == FORMAT and migrating is None)):
            return
        try:
            has_lanes = await self.begin_migration()
        except StorageError:
            if format_ is None:
                return
            raise
        if has_lanes:
            await self._convert_lanes("SSCAN", ":lanes", fields=1)
            await self._convert_lanes("HSCAN", ":head", fields=2)
            await self.run("migrate", "end")

    async def begin_migration(self) -> bool:
        """Keep older builds out. Returns whether there are lanes to convert."""
        try:
            return bool(await self.run("migrate", "begin"))
        except NewerFormat:
            raise
        except Refused as error:
            raise Refused(
                f"{error}; the queue has the format of an earlier qo, which this user may not change:"
                " run qo migrate as a user with that permission (qo-admin or qo-worker), then restart this process"
            ) from error

    async def _convert_lanes(self, scan: str, key: str, *, fields: int) -> None:
        """Convert the lanes that a key names; a scan returns this many fields for each of them."""
        page = b"0"
        while True:
            (reply,) = await self.send((scan, f"{self._key}{key}", page, "COUNT", _LANES_PER_PAGE))
            if isinstance(reply, RedisError):
                raise self._pool.error(reply)
            page, lanes = reply[0], reply[1][::fields]
            cursor = b"0"
            while lanes:
                done, cursor = await self.run("migrate", "convert", _TASKS_PER_STEP, cursor, *lanes[:_LANES_PER_PAGE])
                lanes = lanes[done:]
            if page == b"0":
                return


def _format(fields: list[bytes]) -> Format:
    values: dict[str, Any] = {
        name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)
    }
    return Format(format=int(values["format"]), since=int(values.get("since", 0)), qo=values.get("qo", ""))


def _exchanges(batches: Sequence[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Group batches for one exchange each, by size."""
    group: list[Sequence[Any]] = []
    size = 0
    for batch in batches:
        batch_size = sum(len(argument) for argument in batch if isinstance(argument, bytes))
        if group and size + batch_size > _MAX_EXCHANGE_SIZE:
            yield group
            group, size = [], 0
        group.append(batch)
        size += batch_size
    if group:
        yield group


def _cause(error: BaseException) -> BaseException:
    return error.__cause__ or error
