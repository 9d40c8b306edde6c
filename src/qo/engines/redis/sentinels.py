"""Asks sentinels for the primary. Each request uses its own connection."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotReached
from redis.exceptions import RedisError

from qo.engines.redis.address import Host, SentinelLogin

_RESPONSE_TIMEOUT = 1.0  # of one sentinel; then the next one is asked


class Sentinels:
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
