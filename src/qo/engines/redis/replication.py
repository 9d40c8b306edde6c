"""The primary, as sentinels name it, and its replicas, which must have a write before it is acknowledged.

`min-replicas-to-write` is not enough: it checks how recently the replicas responded, not whether they have this write.
So each write is followed by WAIT. Sentinels may promote any replica, so every connected replica must have the write. If
a replica has disconnected, the sentinels may just have promoted it; then the confirmations of the others count only if
the sentinels still agree on this primary. The outcome of an unconfirmed write is unknown, and the call is repeated on
the primary of that moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotReached
from redis.exceptions import ReadOnlyError, RedisError

from qo.engines.redis.address import Host, RedisAddress, SentinelLogin

_RESPONSE_TIMEOUT = 1.0  # of one sentinel; then the next one is asked


class Sentinels:
    """Asks sentinels for the primary. Each request uses its own connection."""

    def __init__(self, hosts: Sequence[Host], service: str, login: SentinelLogin | None = None) -> None:
        self._hosts, self._service, self._login = list(hosts), service, login or SentinelLogin()

    async def primary(self) -> Host:
        """The primary, according to the first sentinel that knows it."""
        refusals: list[str] = []
        for host in list(self._hosts):
            try:
                found = await _request(host, self._login, "GET-MASTER-ADDR-BY-NAME", self._service)
            except (RedisError, OSError) as error:  # TimeoutError is an OSError
                refusals.append(f"{host.name}:{host.port}: {str(error) or 'no response'}")
                continue
            if found:
                self._hosts.sort(key=lambda other: other != host)  # ask this sentinel first the next time
                return Host(found[0].decode(), int(found[1]))
            refusals.append(f"{host.name}:{host.port} does not know {self._service!r}")
        raise NotReached(f"no sentinel names a primary: {'; '.join(refusals)}")

    async def agree_on(self, primary: Host) -> bool:
        """Whether a majority of the sentinels responds, and each of those names this primary and no failover."""
        requests = [_request(host, self._login, "MASTER", self._service) for host in self._hosts]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        states = [dict(zip(row[::2], row[1::2], strict=True)) for row in answers if isinstance(row, list)]
        return 2 * len(states) > len(self._hosts) and all(_is_settled(state, primary) for state in states)


def _is_settled(state: dict[bytes, bytes], primary: Host) -> bool:
    named = Host(state[b"ip"].decode(), int(state[b"port"]))
    return named == primary and b"failover_in_progress" not in state[b"flags"].split(b",")


async def _request(host: Host, login: SentinelLogin, *words: str) -> list[bytes] | None:
    connection: Any = (SSLConnection if login.tls else Connection)(
        host=host.name,
        port=host.port,
        username=login.username,
        password=login.password,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        async with asyncio.timeout(_RESPONSE_TIMEOUT):
            await connection.connect()
            await connection.send_command("SENTINEL", *words)
            answer: list[bytes] | None = await connection.read_response()
            return answer
    finally:
        await connection.disconnect(nowait=True)


_CONFIRM_TIMEOUT_MS = 1000

Command = tuple[Any, ...]
Send = Callable[[Sequence[Command]], Awaitable[list[Any]]]  # on the connection that wrote


class Unconfirmed(RedisError):
    pass


class Replication:
    """Checks that replicas have a write before it is acknowledged. A failover loses what only the primary has."""

    def __init__(self, address: RedisAddress, sentinels: Sentinels | None) -> None:
        self._sentinels = sentinels
        self._required = address.replicas  # None: all that are connected
        self._primary: Host | None = None
        self._replicas: frozenset[Host] = frozenset()  # every replica known to be connected to that primary
        self._fence = f"{{{address.prefix}}}:fence"

    def confirmation_commands(self) -> list[Command]:
        """Commands to send after a write.

        WAIT waits for the last write of its own connection. A repeated call finds its receipt and writes nothing, so
        the first command is a write.
        """
        if self._required == 0:
            return []
        number = max(1, len(self._replicas)) if self._required is None else self._required
        return [("SET", self._fence, ""), ("WAIT", number, _CONFIRM_TIMEOUT_MS), ("ROLE",)]

    def add_connection(self, primary: Host, role: list[Any]) -> None:
        """Record the replicas that a new connection's server reports. Raises ReadOnlyError if it is not a primary."""
        found = _replicas(role)
        self._replicas = found | (self._replicas if primary == self._primary else frozenset())
        self._primary = primary

    async def check(self, primary: Host, replies: list[Any], send: Send) -> None:
        """Check the replies to the confirmation commands. Raises Unconfirmed if a failover could lose the write."""
        confirmed, connected = _parse(replies)
        if self._required is not None:
            if confirmed < self._required:
                raise Unconfirmed(f"{confirmed} of {self._required} replicas confirmed the write in time")
            return
        if confirmed < len(connected):  # a replica was not known before, or did not confirm in time
            confirmed, connected = _parse(await send([("WAIT", len(connected), _CONFIRM_TIMEOUT_MS), ("ROLE",)]))
        known = self._replicas if primary == self._primary else frozenset()
        is_complete = confirmed >= max(1, len(connected)) and known <= connected
        if not is_complete and not (confirmed and await self._is_undisputed(primary)):
            raise Unconfirmed(f"{confirmed} of {len(known | connected)} replicas confirmed the write in time")
        if primary == self._primary:
            self._replicas = connected

    async def _is_undisputed(self, primary: Host) -> bool:
        return self._sentinels is not None and await self._sentinels.agree_on(primary)


def _parse(replies: list[Any]) -> tuple[int, frozenset[Host]]:
    """How many replicas confirmed, and which are connected."""
    refusal = next((reply for reply in replies if isinstance(reply, RedisError)), None)
    if refusal is not None:
        raise refusal
    return int(replies[-2]), _replicas(replies[-1])


def _replicas(role: list[Any]) -> frozenset[Host]:
    if role[0] != b"master":
        raise ReadOnlyError("READONLY this server is not the primary, or no longer")
    return frozenset(Host(name.decode(), int(port)) for name, port, _ in role[2])
