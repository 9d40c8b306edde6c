"""Opening a store: transient errors are retried, and a refusal is raised at once."""

import pytest

from qo.clock import boot_clock
from qo.engine import Engine
from qo.engines import open_engine, requests
from qo.errors import Refused, StorageError
from qo.testing.faults import Fault, Faults
from qo.testing.s3_server import S3Server
from qo.testing.samples import new, stored
from tests.engines.layouts import LAYOUTS
from tests.servers.postgres import PostgresServer
from tests.servers.process import KEYS, free_port
from tests.servers.redis import Server
from tests.servers.stumbling_proxy import StumblingProxy


class FirstFaults(Faults):
    """Only the first requests fail."""

    def __init__(self, fault: Fault, number: int) -> None:
        super().__init__(seed=1)
        self._fault, self._left = fault, number

    def draw(self) -> Fault | None:
        self._left -= 1
        return self._fault if self._left >= 0 else None


async def use(engine: Engine) -> None:
    await engine.open()
    try:
        await engine.add([new()])
        await stored(engine)
    finally:
        await engine.close()


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_opening_is_retried_while_a_bucket_is_busy(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    async with S3Server(faults=FirstFaults(Fault.REFUSED, 3)) as server:
        divider = "&" if "?" in server.url else "?"
        await use(open_engine(f"{server.url}{divider}layout={layout}"))


async def test_opening_is_retried_while_redis_closes_connections(redis_server: Server) -> None:
    async with StumblingProxy(redis_server.port, stumbles=2).running() as proxy:
        await use(open_engine(f"redis://127.0.0.1:{proxy.port}/0?prefix=stumbling"))
        assert proxy.stumbles_left == 0


async def test_opening_is_retried_while_redis_loads_its_data(redis_server: Server) -> None:
    loading = b"-LOADING Redis is loading the dataset in memory\r\n"
    async with StumblingProxy(redis_server.port, stumbles=3, refusal=loading).running() as proxy:
        await use(open_engine(f"redis://127.0.0.1:{proxy.port}/0?prefix=loading"))
        assert proxy.stumbles_left == 0


@pytest.mark.parametrize(
    ("refusal", "kind", "advice"),
    [
        (b"-LOADING Redis is loading the dataset in memory", StorageError, "still loading its data"),
        (b"-READONLY You can't write against a read only replica.", StorageError, "name the primary"),
        (b"-MASTERDOWN Link with MASTER is down", StorageError, "lost its primary"),
        (b"-OOM command not allowed when used memory > 'maxmemory'.", StorageError, "its memory is full"),
        (b"-NOPERM this user has no permissions to run the 'ping' command", Refused, "the rights of each role"),
        (b"-NOAUTH Authentication required.", Refused, "password"),
    ],
)
async def test_opening_is_not_retried_if_redis_refuses_it(
    refusal: bytes, kind: type[StorageError], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_OPENING_DEADLINE", 0.0)
    async with StumblingProxy(1, stumbles=99, refusal=refusal + b"\r\n").running() as proxy:
        engine = open_engine(f"redis://127.0.0.1:{proxy.port}/0")
        with pytest.raises(StorageError, match=advice) as caught:
            await engine.open()
        await engine.close()
    assert type(caught.value) is kind


async def test_opening_is_retried_while_postgres_closes_connections(postgres: PostgresServer) -> None:
    async with StumblingProxy(postgres.port, stumbles=2).running() as proxy:
        url = f"{postgres.url()}?schema=stumbling".replace(f":{postgres.port}", f":{proxy.port}")
        await use(open_engine(url))
        assert proxy.stumbles_left == 0


async def test_opening_an_unreachable_store_fails_after_a_few_seconds() -> None:
    began = boot_clock()
    with pytest.raises(StorageError, match="cannot be reached") as caught:
        await use(open_engine(f"redis://127.0.0.1:{free_port()}/0"))
    assert not isinstance(caught.value, Refused)
    assert boot_clock() - began < 60


async def test_a_wrong_password_is_refused(postgres: PostgresServer, redis_server: Server) -> None:
    with pytest.raises(Refused):
        await use(open_engine(f"redis://nobody:wrong@127.0.0.1:{redis_server.port}/0"))
    with pytest.raises(Refused, match="no_such_database"):
        await use(open_engine(postgres.url("no_such_database")))
