"""A proxy that loses responses of a server on request."""

import asyncio
from contextlib import suppress
from typing import Self


class FaultyProxy:
    """Drops the next `lose` responses, with their connections, after the server has sent them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.lose = 0
        self.lost = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        forward = asyncio.create_task(self._forward(reader, up_writer))
        with suppress(ConnectionError):
            while data := await up_reader.read(1 << 20):
                if self.lose:
                    self.lose -= 1
                    self.lost += 1
                    break
                writer.write(data)
                await writer.drain()
        forward.cancel()
        for each in (writer, up_writer):
            each.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                writer.write(data)
                await writer.drain()
            writer.close()
