"""Asking sentinels who the primary is. Each question has a connection of its own, closed with the answer."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotReached
from redis.exceptions import RedisError

from qo.engines.redis.address import Host, SentinelLogin

_PATIENCE = 1.0  # seconds a sentinel has to answer; the next one is asked then


class Sentinels:
    def __init__(self, hosts: Sequence[Host], service: str, login: SentinelLogin | None = None) -> None:
        self._hosts, self._service, self._login = list(hosts), service, login or SentinelLogin()

    async def primary(self) -> Host:
        """Who takes writes, by the first sentinel that knows."""
        refusals: list[str] = []
        for host in list(self._hosts):
            try:
                found = await _ask(host, self._login, "GET-MASTER-ADDR-BY-NAME", self._service)
            except (RedisError, OSError) as error:  # TimeoutError is an OSError
                refusals.append(f"{host.name}:{host.port}: {str(error) or 'no answer'}")
                continue
            if found:
                self._hosts.sort(key=lambda other: other != host)  # who answers is asked first the next time
                return Host(found[0].decode(), int(found[1]))
            refusals.append(f"{host.name}:{host.port} does not know {self._service!r}")
        raise NotReached(f"no sentinel names a primary: {'; '.join(refusals)}")

    async def agree_on(self, primary: Host) -> bool:
        """Whether more than half of them answer, and all who do name this primary and know of no failover."""
        questions = [_ask(host, self._login, "MASTER", self._service) for host in self._hosts]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        known = [dict(zip(row[::2], row[1::2], strict=True)) for row in answers if isinstance(row, list)]
        return 2 * len(known) > len(self._hosts) and all(_is_settled(row, primary) for row in known)


def _is_settled(row: dict[bytes, bytes], primary: Host) -> bool:
    named = Host(row[b"ip"].decode(), int(row[b"port"]))
    return named == primary and b"failover_in_progress" not in row[b"flags"].split(b",")


async def _ask(host: Host, login: SentinelLogin, *words: str) -> list[bytes] | None:
    line: Any = (SSLConnection if login.tls else Connection)(
        host=host.name,
        port=host.port,
        username=login.username,
        password=login.password,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        async with asyncio.timeout(_PATIENCE):
            await line.connect()
            await line.send_command("SENTINEL", *words)
            answer: list[bytes] | None = await line.read_response()
            return answer
    finally:
        await line.disconnect(nowait=True)
