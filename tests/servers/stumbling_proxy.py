"""A wire to a server that hangs up on the first callers, or refuses them, and then passes everything on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self


class StumblingProxy:
    def __init__(self, port: int, *, stumbles: int, refusal: bytes = b"") -> None:
        """`refusal`: what the first callers are told in answer to each command of Redis, instead of hanging up."""
        self._target, self.stumbles_left, self._refusal = port, stumbles, refusal
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

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

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            if self.stumbles_left:
                self.stumbles_left -= 1
                await self._refuse(reader, writer)
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
            finally:
                back.close()
        finally:
            writer.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):  # a task of the server's that is cancelled would be logged
            while self._refusal and (data := await reader.read(1 << 16)):
                commands = 1 + data.count(b"\r\n*")  # each begins with its number of words
                writer.write(self._refusal * commands)
                await writer.drain()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()
