"""A wire between a client and a server that can be cut, before a request arrives or before its answer does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Literal, Self

Loss = Literal["request", "answer"]


class Proxy:
    def __init__(self, port: int) -> None:
        self.target = port
        self._loss: Loss | None = None
        self._marker, self._spare = b"", 0
        self.wires: set[asyncio.StreamWriter] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._cut_for_good = False
        self._passes = asyncio.Event()
        self._passes.set()
        self.lost = asyncio.Event()
        self.losses = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()
        for end in self._ends:
            end.cancel()
        await asyncio.gather(*self._ends, return_exceptions=True)

    def lose(self, what: Loss, marker: bytes, *, spare: int = 0, for_good: bool = False) -> None:
        """Cut the wire at the next request that holds `marker`, sparing a few. For good: nobody comes through after."""
        self._loss, self._marker, self._spare, self._cut_for_good = what, marker, spare, for_good
        self.lost.clear()

    async def cut(self) -> None:
        """Nobody comes through any more."""
        self._server.close()
        self.drop()

    def drop(self) -> None:
        """Close all connections; new ones come through."""
        for wire in list(self.wires):
            wire.close()

    def silence(self) -> None:
        """Whoever calls is answered nothing any more; what was said meanwhile arrives when the wire is whole again."""
        self._passes.clear()

    async def heal(self) -> None:
        """Let connections through again; those that were cut must be made anew."""
        self._passes.set()
        if self._server.is_serving():
            return
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(asyncio.current_task())  # type: ignore[arg-type]
        async with self._wire(writer):
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            answers = asyncio.create_task(self._pass_on(there, writer))
            self._ends.add(answers)
            async with self._wire(back):
                while data := await reader.read(1 << 16):
                    await self._passes.wait()
                    if self._is_unlucky(data):
                        await self._lose(data, answers, there, back)
                        break
                    back.write(data)
                    await back.drain()
            answers.cancel()

    @asynccontextmanager
    async def _wire(self, wire: asyncio.StreamWriter) -> AsyncIterator[None]:
        """Closed whatever happens, and known meanwhile to whoever cuts."""
        self.wires.add(wire)
        try:
            with contextlib.suppress(OSError):
                yield
        finally:
            self.wires.discard(wire)
            wire.close()
            with contextlib.suppress(OSError):
                await wire.wait_closed()

    def _is_unlucky(self, data: bytes) -> bool:
        if self._loss is None or self._marker not in data:
            return False
        self._spare -= 1
        return self._spare < 0

    async def _lose(
        self, data: bytes, answers: asyncio.Task[None], there: asyncio.StreamReader, back: asyncio.StreamWriter
    ) -> None:
        loss, self._loss = self._loss, None
        if loss == "answer":
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            back.write(data)
            await there.read(1)  # the server has done it
        self.losses += 1
        self.lost.set()
        if self._cut_for_good:
            await self.cut()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
