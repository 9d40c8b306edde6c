"""The connection cut at every step of add, claim and apply, on the way there and on the way back.

Whatever is cut, a call must answer with the truth: nothing is lost, nothing is there twice, nothing is held by nobody.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.model import Status, complete
from qo.testing.samples import new, task_id, want
from tests.servers.postgres import PostgresServer, server, url

__all__ = ["server", "url"]  # fixtures

THERE, BACK = 0, 1
WARM_UP = 3
CUTS = 120  # in each direction, spread over the whole exchange


class Proxy:
    """Passes bytes on, until the chosen number of them has gone by in the chosen direction; then it hangs up, once."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._left: int | None = None
        self._direction = THERE
        self.passed = [0, 0]
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    def arm(self, direction: int, after: int) -> None:
        self._direction, self._left = direction, after

    @property
    def armed(self) -> bool:
        return self._left is not None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
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
        server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        pipes = [
            asyncio.create_task(self._pipe(client, to_server, THERE)),
            asyncio.create_task(self._pipe(server, to_client, BACK)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            to_client.close()
            to_server.close()

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: int) -> None:
        while data := await source.read(65536):
            self.passed[direction] += len(data)
            if self._left is not None and direction == self._direction:
                data, self._left = data[: self._left], self._left - len(data)
            sink.write(data)
            await sink.drain()
            if self._left is not None and self._left < 0:
                self._left = None
                return


def _spread(size: int) -> list[int]:
    """From before the first byte to before the last."""
    return sorted({*range(0, size, max(1, size // CUTS)), size - 1})


Step = Callable[[PostgresEngine, int], Awaitable[None]]


async def cut_everywhere(server: PostgresServer, url: str, prepare: Step, step: Step) -> None:
    async with Proxy(server.port).running() as proxy:
        engine = PostgresEngine(address_of(url.replace(str(server.port), str(proxy.port))))
        await engine.open()
        for turn in range(WARM_UP):  # until all statements are prepared: then the exchange has its least size
            await prepare(engine, turn)
            before = list(proxy.passed)
            await step(engine, turn)
            there, back = (now - then for now, then in zip(proxy.passed, before, strict=True))
        cuts = [(THERE, after) for after in _spread(there)] + [(BACK, after) for after in _spread(back)]
        for turn, (direction, after) in enumerate(cuts, WARM_UP):
            await prepare(engine, turn)
            proxy.arm(direction, after)
            await step(engine, turn)
            assert not proxy.armed, (direction, after)
        await engine.close()


async def nothing(engine: PostgresEngine, turn: int) -> None: ...


async def one(engine: PostgresEngine, turn: int) -> None:
    await engine.add([new(turn)])


async def test_adding(server: PostgresServer, url: str) -> None:
    async def step(engine: PostgresEngine, turn: int) -> None:
        assert await engine.add([new(turn), new(1_000_000 + turn)]) == [
            (task_id(turn), True),
            (task_id(1_000_000 + turn), True),
        ]

    await cut_everywhere(server, url, nothing, step)


async def test_adding_what_is_partly_known(server: PostgresServer, url: str) -> None:
    async def step(engine: PostgresEngine, turn: int) -> None:
        added = await engine.add([new(1_000_000), new(turn)])
        assert added == [(task_id(1_000_000), turn == 0), (task_id(turn), True)]

    await cut_everywhere(server, url, nothing, step)


async def test_claiming(server: PostgresServer, url: str) -> None:
    async def step(engine: PostgresEngine, turn: int) -> None:
        tasks = await engine.claim(want(limit=1))
        assert [(task.id, task.attempt) for task in tasks] == [(task_id(turn), 1)]
        assert await engine.apply([complete(tasks[0])]) == [True]

    await cut_everywhere(server, url, one, step)


@pytest.mark.parametrize("ordinary", [True, False])
async def test_applying(server: PostgresServer, url: str, *, ordinary: bool) -> None:
    held = {}

    async def hold(engine: PostgresEngine, turn: int) -> None:
        await engine.add([new(turn)])
        (held[turn],) = await engine.claim(want(limit=1))

    async def step(engine: PostgresEngine, turn: int) -> None:
        change = complete(held[turn], b"1" if ordinary else b"2")
        if not ordinary:
            change = type(change)(id=change.id, guard=change.guard, to=change.to, lease_id=change.lease_id)
        assert await engine.apply([change]) == [True]
        statuses = [event.status for event in await engine.history(task_id(turn))]
        assert statuses == [Status.PENDING, Status.RUNNING, Status.COMPLETED]

    await cut_everywhere(server, url, hold, step)
