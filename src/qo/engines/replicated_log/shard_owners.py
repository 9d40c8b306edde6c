"""Which shards a process claims from first. Each process that claims keeps a marker in the bucket while it is alive.

Owners only avoid races: any process may claim from any shard, so a wrong or outdated view of the owners is harmless.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from hashlib import blake2b

from qo.bucket import ANY, Bucket
from qo.engines.replicated_log.keys import owner_key, owners_prefix
from qo.engines.requests import in_parallel
from qo.errors import StorageError
from qo.ids import new_token

log = logging.getLogger("qo.engines.replicated_log")

PERIOD = 60.0  # seconds between the markers of a process, and between its reads of the others' markers
_FIRST_INTERVAL = 1.0  # seconds between reads after the set of processes has changed; it doubles
_LIFETIME = 2  # periods after which a process without a new marker counts as dead
_GARBAGE_AGE = 10  # periods after which any process removes a marker
_MAX_MARKS = 10_000
_MARK = re.compile(r"([0-9a-f]{8})-([0-9a-f]{32})")


class ShardOwners:
    """The live processes known to this process, and its own shards."""

    def __init__(self, bucket: Bucket, log_id: str, shards: int) -> None:
        self._bucket, self._log, self._shards = bucket, log_id, shards
        self.process = new_token()
        self._members: frozenset[str] = frozenset()
        self._own: Sequence[int] = range(shards)
        self._marked: str | None = None  # the key of the last marker
        self._looked_at: float | None = None
        self._interval = _FIRST_INTERVAL
        self._looking: asyncio.Task[None] | None = None

    async def own(self) -> Sequence[int]:
        """The shards from which this process claims first. Only the first call waits for the store."""
        now = asyncio.get_running_loop().time()
        if self._looked_at is None or now - self._looked_at >= self._interval:
            is_first = self._looked_at is None
            self._looked_at = now
            self._looking = asyncio.create_task(self._look())
            if is_first:
                await asyncio.shield(self._looking)
        return self._own

    async def leave(self) -> None:
        """Call when this process stops claiming."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
        marked, self._marked, self._looked_at = self._marked, None, None
        if marked is not None:
            with suppress(StorageError):  # it expires
                await self._bucket.delete(marked)

    async def _look(self) -> None:
        period = int(self._bucket.now() // PERIOD)
        try:
            await self._mark(period)  # first: of two processes that start together, one at least finds the other
            marks = await self._marks()
        except StorageError as error:  # the role may not allow it; the next read follows soon
            log.debug("the owners of shards are not known: %s", error)
            return
        self._use({process for at, process in marks if at >= period - _LIFETIME} | {self.process})
        old = [owner_key(self._log, at, process) for at, process in marks if at < period - _GARBAGE_AGE]
        with suppress(StorageError):
            await in_parallel(self._bucket.delete, old)

    async def _mark(self, period: int) -> None:
        key, former = owner_key(self._log, period, self.process), self._marked
        if key == former:
            return
        await self._bucket.put(key, b"", expected=ANY)
        self._marked = key
        if former is not None:
            await self._bucket.delete(former)

    async def _marks(self) -> list[tuple[int, str]]:
        prefix, marks = owners_prefix(self._log), list[tuple[int, str]]()
        async for key in self._bucket.keys(prefix):
            if match := _MARK.fullmatch(key.removeprefix(prefix)):
                marks.append((int(match[1], 16), match[2]))
            if len(marks) == _MAX_MARKS:
                break
        return marks

    def _use(self, members: Collection[str]) -> None:
        self._interval = min(2 * self._interval, PERIOD)
        if self._members != frozenset(members):
            self._members, self._interval = frozenset(members), _FIRST_INTERVAL
            self._own = owned_shards(self.process, self._members, self._shards)


def owned_shards(process: str, members: Collection[str], shards: int) -> list[int]:
    """The shards of a process, by rendezvous hashing: when a process starts or stops, few shards of the others move.

    The numbers of shards of two processes differ by at most one. If there are more processes than shards, each has one
    shard, and the shards have equal numbers of processes.
    """
    pairs = sorted(
        (blake2b(f"{shard}/{member}".encode(), digest_size=8).digest(), shard, member)
        for member in members
        for shard in range(shards)
    )
    are_shared = len(members) > shards
    own, placed, loads = list[int](), set[int | str](), Counter[int | str]()
    for round_ in range(1, -(-max(len(members), shards) // min(len(members), shards)) + 1):
        for _, shard, member in pairs:
            item, place = (member, shard) if are_shared else (shard, member)
            if item not in placed and loads[place] < round_:
                placed.add(item)
                loads[place] += 1
                own += [shard] if member == process else []
    return sorted(own)
