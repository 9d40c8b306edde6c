"""Scripts, and the truth about them when a connection breaks.

A call whose answer was lost is made again with the same nonce: the script finds the receipt of its first run and
answers as it did then. So the answer is the truth, or it is OutcomeUnknown.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, RedisError

from qo.backoff import Backoff
from qo.clock import monotonic_clock
from qo.damage import Damage, DamageLog, encode_damage
from qo.engines.redis.direct_pool import DirectPool
from qo.engines.redis.pool import Doubtful, RedisPool, Unsent
from qo.errors import OutcomeUnknown, StorageError
from qo.formats import format_of

_PATIENCE = 6.0  # seconds to find out what became of a call; receipts are kept for longer
_LARGEST = 4 << 20  # bytes a trip
_SHORTEST, _LONGEST = 0.02, 0.5  # seconds between two tries
_READING = {"get", "find", "count"}
_PARTS = {  # of scripts, in order, and which use them
    "heads": {"add", "apply", "claim", "set_aside", "migrate"},
    "merge": {"claim", "find"},
}
ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and keep
FORMAT = 3  # of what the scripts read and write; see docs/formats.md


class Script(NamedTuple):
    text: str
    sha: str
    writes: bool


@cache
def script(name: str) -> Script:
    folder = files("qo.engines.redis") / "lua"
    parts = ["prelude", *(part for part, users in _PARTS.items() if name in users), name]
    found = format_of(FORMAT, additive=ADDITIVE)
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)
    for word, value in (("{format}", found.format), ("{since}", found.since), ("{qo}", found.qo)):
        text = text.replace(word, str(value), 1)
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest(), name not in _READING)


class ScriptRunner:
    def __init__(self, lines: RedisPool | DirectPool, prefix: str) -> None:
        self._lines = lines
        self._key = f"{{{prefix}}}"
        self._damage_log = DamageLog()

    async def one(self, name: str, *arguments: Any) -> Any:
        (answer,) = await self.many(name, [arguments])
        return answer

    async def many(self, name: str, batches: Sequence[Sequence[Any]]) -> list[Any]:
        """Run a script once for each batch, in order, in as few trips as their size allows."""
        replies: list[Any] = []
        for trip in _trips(batches):
            try:
                replies += await self._run(script(name), trip)
            except OutcomeUnknown:
                raise
            except StorageError as error:
                if replies:  # part of the batch landed
                    raise OutcomeUnknown(str(error)) from error
                raise
        return replies

    async def _run(self, script: Script, batches: Sequence[Sequence[Any]]) -> list[Any]:
        commands = [("EVALSHA", script.sha, 1, self._key, *words) for words in batches]
        replies = await self._truth(commands, script, writing=script.writes)
        refused = [reply for reply in replies if isinstance(reply, RedisError)]
        if refused:
            kind = StorageError if len(refused) == len(replies) else OutcomeUnknown
            raise self._lines.error(refused[0], kind) from refused[0]
        return replies

    async def set_aside(self, damage: Damage) -> None:
        """Take tasks that cannot be read out of all lists, and say so."""
        if damage:
            await self.many("set_aside", [(bad, encode_damage(bad, problem)) for bad, problem in damage.items()])
            self._damage_log.report(damage)

    async def plain(self, *commands: tuple[Any, ...], writing: bool = False) -> list[Any]:
        """Commands that may be repeated at will. A refusal stands among the replies."""
        return await self._truth(commands, writing=writing)

    async def _truth(
        self, commands: Sequence[tuple[Any, ...]], script: Script | None = None, *, writing: bool = False
    ) -> list[Any]:
        until, backoff, suspect = monotonic_clock() + _PATIENCE, Backoff(_SHORTEST, _LONGEST), False
        while True:
            try:
                replies = await self._once(commands, script, writing=writing)
            except Unsent as error:
                if not suspect:
                    raise self._lines.error(_cause(error)) from error
                last = _cause(error)
            except Doubtful as error:
                suspect, last = True, _cause(error)
            else:
                refusal = next((reply for reply in replies if isinstance(reply, RedisError)), None)
                if refusal is None or not suspect:
                    return replies
                last = refusal  # it says nothing about the first try
            if monotonic_clock() + backoff.upcoming > until:
                raise self._lines.error(last, OutcomeUnknown) from last
            await self._lines.pause(backoff.next())

    async def _once(self, commands: Sequence[tuple[Any, ...]], script: Script | None, *, writing: bool) -> list[Any]:
        replies = await self._lines.exchange(*commands, writing=writing)
        if script is not None and any(isinstance(reply, NoScriptError) for reply in replies):
            load = ("SCRIPT", "LOAD", script.text)
            loaded, *replies = await self._lines.exchange(load, *commands, writing=writing)
            if isinstance(loaded, RedisError):
                return [loaded]
        return replies


def _trips(batches: Sequence[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Batches that travel together: a few megabytes, so that a slow line can carry them in time."""
    trip: list[Sequence[Any]] = []
    size = 0
    for batch in batches:
        weight = sum(len(word) for word in batch if isinstance(word, bytes))
        if trip and size + weight > _LARGEST:
            yield trip
            trip, size = [], 0
        trip.append(batch)
        size += weight
    if trip:
        yield trip


def _cause(error: BaseException) -> BaseException:
    return error.__cause__ or error
