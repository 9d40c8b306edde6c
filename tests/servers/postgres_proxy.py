"""A wire to Postgres that hangs up at a chosen byte of what is said, and remembers where messages begin."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Self

from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from tests.servers.postgres import PostgresServer

THERE, BACK = 0, 1
WARM_UP = 3
EVERY_BYTE = bool(os.environ.get("QO_CUTS"))  # else: around the beginning of each message, and within it

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Step = Callable[[PostgresEngine, int], Awaitable[None]]


class Proxy:
    """Passes bytes on, until the chosen number of them has gone by in the chosen direction; then it hangs up, once."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._left: int | None = None
        self._direction = THERE
        self.passed = (bytearray(), bytearray())
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    def arm(self, direction: int, after: int) -> None:
        self._direction, self._left = direction, after

    @property
    def armed(self) -> bool:
        return self._left is not None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listener.close()
            for serving in self._serving:
                serving.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(client, to_client))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with closing(to_client):
            server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
            with closing(to_server):
                await self._pass_on((client, to_client), (server, to_server))

    async def _pass_on(self, client: Ends, server: Ends) -> None:
        pipes = [
            asyncio.create_task(self._pipe(client[0], server[1], THERE)),
            asyncio.create_task(self._pipe(server[0], client[1], BACK)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: int) -> None:
        while data := await source.read(65536):
            self.passed[direction].extend(data)
            if self._left is not None and direction == self._direction:
                data, self._left = data[: self._left], self._left - len(data)
            sink.write(data)
            await sink.drain()
            if self._left is not None and self._left < 0:
                self._left = None
                return


def _places(said: bytes) -> list[int]:
    """Where to hang up: before each message, in the middle of it, and before the very last byte."""
    if EVERY_BYTE:
        return list(range(len(said)))
    places, at = set[int](), 0
    while at < len(said):
        size = 1 + int.from_bytes(said[at + 1 : at + 5])
        places |= {at, at + size // 2}
        at += size
    assert at == len(said), "the exchange is not whole messages"
    return sorted(places | {at - 1})


async def nothing(engine: PostgresEngine, turn: int) -> None: ...


async def cut_everywhere(server: PostgresServer, url: str, prepare: Step, step: Step, check: Step = nothing) -> None:
    """Take a step again and again, each time cut at another place."""
    async with Proxy(server.port).running() as proxy:
        engine = PostgresEngine(address_of(url.replace(str(server.port), str(proxy.port))))
        await engine.open()
        try:
            for turn in range(WARM_UP):  # until all statements are prepared: then the exchange has its least size
                await prepare(engine, turn)
                for passed in proxy.passed:
                    passed.clear()
                await step(engine, turn)
                said = tuple(map(bytes, proxy.passed))
                await check(engine, turn)
            cuts = [(way, place) for way in (THERE, BACK) for place in _places(said[way])]
            for turn, (direction, after) in enumerate(cuts, WARM_UP):
                await prepare(engine, turn)
                proxy.arm(direction, after)
                await step(engine, turn)
                assert not proxy.armed, (direction, after)
                await check(engine, turn)
        finally:
            await engine.close()
