"""A write counts when the replicas have it: an answer of the primary alone is forgotten if it dies in that moment.

`min-replicas-to-write` does not help here: it asks how replicas did a moment ago, not whether they have this write.
So each write is followed by WAIT. Sentinels may promote any replica, therefore all that are there must have it; and
if one that was there is gone, it may just have been promoted behind our back, so the sentinels are asked before the
others suffice. Whatever is not confirmed is in suspect, and the call is made again where the primary is by then.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import ReadOnlyError, RedisError

from qo.engines.redis.address import Host, RedisAddress
from qo.engines.redis.sentinels import Sentinels

_PATIENCE = 1000  # milliseconds that replicas have to confirm

Command = tuple[Any, ...]
Ask = Callable[[Sequence[Command]], Awaitable[list[Any]]]  # on the connection that wrote


class Unconfirmed(RedisError):
    pass


class Replication:
    def __init__(self, address: RedisAddress, sentinels: Sentinels | None) -> None:
        self._sentinels = sentinels
        self._asked = address.replicas  # None: as many as there are
        self._primary: Host | None = None
        self._replicas: frozenset[Host] = frozenset()  # of that primary; none has left it since
        self._fence = f"{{{address.prefix}}}:fence"

    def question(self) -> list[Command]:
        """Commands to send behind a write.

        WAIT looks at what its own connection wrote last. A repeated call finds its receipt and writes nothing, so
        something is written here.
        """
        if self._asked == 0:
            return []
        number = max(1, len(self._replicas)) if self._asked is None else self._asked
        return [("SET", self._fence, ""), ("WAIT", number, _PATIENCE), ("ROLE",)]

    def meet(self, primary: Host, role: list[Any]) -> None:
        """A new connection begins with what its server says of itself."""
        found = _replicas(role)
        self._replicas = found | (self._replicas if primary == self._primary else frozenset())
        self._primary = primary

    async def check(self, primary: Host, replies: list[Any], ask: Ask) -> None:
        """Unconfirmed, unless the replies to the question say that a failover keeps the write."""
        confirmed, there = _read(replies)
        if self._asked is not None:
            if confirmed < self._asked:
                raise Unconfirmed(f"{confirmed} of {self._asked} replicas confirmed the write in time")
            return
        if confirmed < len(there):  # more of them are there than we knew of, or not all have answered in time
            confirmed, there = _read(await ask([("WAIT", len(there), _PATIENCE), ("ROLE",)]))
        known = self._replicas if primary == self._primary else frozenset()
        complete = confirmed >= max(1, len(there)) and known <= there
        if not complete and not (confirmed and await self._is_alone_in_charge(primary)):
            raise Unconfirmed(f"{confirmed} of {len(known | there)} replicas confirmed the write in time")
        if primary == self._primary:
            self._replicas = there

    async def _is_alone_in_charge(self, primary: Host) -> bool:
        return self._sentinels is not None and await self._sentinels.agree_on(primary)


def _read(replies: list[Any]) -> tuple[int, frozenset[Host]]:
    refusal = next((reply for reply in replies if isinstance(reply, RedisError)), None)
    if refusal is not None:
        raise refusal
    return int(replies[-2]), _replicas(replies[-1])


def _replicas(role: list[Any]) -> frozenset[Host]:
    if role[0] != b"master":
        raise ReadOnlyError("READONLY this server is not, or no longer, the primary")
    return frozenset(Host(name.decode(), int(port)) for name, port, _ in role[2])
