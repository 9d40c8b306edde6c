"""Hostile calls to the engine port and to every route, on every store (P14): no answer is a server error."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qo.client import Client
from qo.engines import open_engine
from qo.ids import new_token
from qo.testing.samples import claim, new
from tests.servers.postgres import PostgresServer
from tests.servers.redis import Server
from tests.web.fuzz import Fuzz, make_things, make_tokens
from tests.web.port_fuzz import PortFuzz
from tests.web.serving import in_process, served

CALLS = 140  # on each store in `make test`: each call of the port ten times
MANY_CALLS = 300  # on each store, times QO_TORTURE: 21,000 in all for 10
CASES = 4  # requests for each operation and mode of the API, times QO_TORTURE: up to 2,700 on each store for 10
STORES: dict[str, Callable[[Path, pytest.FixtureRequest], str]] = {
    "memory": lambda _folder, _request: "memory://",
    "sqlite": lambda folder, _request: f"sqlite:///{folder}/qo.db",
    "tasks": lambda folder, _request: f"file://{folder}/bucket?layout=tasks",
    "one": lambda folder, _request: f"file://{folder}/bucket?layout=one",
    "log": lambda folder, _request: f"file://{folder}/bucket?layout=log",
    "sqlite in an object": lambda folder, _request: f"file://{folder}/bucket?layout=sqlite",
    "postgres": lambda _folder, request: _postgres(request.getfixturevalue("postgres")),
    "redis": lambda _folder, request: _redis(request.getfixturevalue("redis_server")),
}


def _postgres(server: PostgresServer) -> str:
    return f"{server.url()}?schema=t{new_token()}"


def _redis(server: Server) -> str:
    return f"{server.url}?prefix={new_token()}"


@pytest.mark.parametrize("store", STORES)
async def test_no_call_of_the_port_is_answered_with_a_server_error(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, scale: int, seed: int
) -> None:
    client = Client(open_engine(STORES[store](tmp_path, request)))
    async with in_process(client) as http:
        fuzz = PortFuzz(http, seed)
        await fuzz.run(CALLS if scale == 1 else MANY_CALLS * scale)
        await fuzz.read_all()
        assert not fuzz.troubles, f"{fuzz.statuses} {fuzz.troubles[0]}"
        assert fuzz.statuses[200] > CALLS // 4, fuzz.statuses
        await client.engine.add([new("honest", queue="honest")])
        assert len(await claim(client.engine, queues=("honest",))) == 1


ROUTED = ("sqlite", "postgres", "redis")


@pytest.mark.parametrize("store", ROUTED)
def test_no_request_with_a_token_is_answered_with_a_server_error(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, scale: int, seed: int
) -> None:
    """`make test` sends a few requests to a third of the routes, which the seed chooses: each strategy takes long."""
    engine = open_engine(STORES[store](tmp_path, request))
    with served(engine) as api:
        tokens, things = api.run(make_tokens(engine)), api.run(make_things(engine))
        if scale == 1:
            part = ROUTED.index(store) + 3 * (seed % 3)
            fuzz = Fuzz(api.url, tokens, seed=seed, part=part, of_parts=9, things=things)
            fuzz.run(2)
        else:
            fuzz = Fuzz(api.url, tokens, seed=seed, things=things)
            fuzz.run(CASES * scale)
    print(f"{sum(fuzz.statuses.values())} requests: {dict(sorted(fuzz.statuses.items()))}")  # noqa: T201 - the figures
    assert not [status for status in fuzz.statuses if status >= 500], fuzz.statuses
    assert len(fuzz.statuses) > 1, fuzz.statuses
