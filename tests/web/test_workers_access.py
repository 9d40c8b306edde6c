"""Workers over HTTP at the application as it is served: tokens, scopes, its description."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from litestar import Litestar

from qo.client import Client
from qo.engines.http import HttpEngine
from qo.engines.http.client import address_of
from qo.engines.sqlite import SqliteEngine
from qo.errors import InvalidSetting
from qo.testing.samples import new
from qo.web import WebSettings, create_app
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from tests.engines.http_server import server
from tests.servers.plain_http import NO_CERTIFICATES


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with Client(SqliteEngine(tmp_path / "qo.db")) as client:
        yield client


@pytest.fixture
def app(tmp_path: Path) -> Litestar:
    return create_app(f"sqlite:///{tmp_path}/qo.db", settings=WebSettings(token_required=True))


async def test_a_native_worker_needs_the_scope_engine_and_one_over_the_worker_protocol_work(
    client: Client, app: Litestar
) -> None:
    secrets = {scope: (await create_token(client.engine, f"for-{scope}", [scope], now=0)).secret for scope in Scope}
    with server(app=app) as served:
        for scope, secret in secrets.items():
            engine = HttpEngine(address_of(served.url.replace("//", f"//worker:{secret}@")))
            await engine.open()
            if scope is Scope.ENGINE:
                assert len(await engine.add([new(len(scope))])) == 1
            else:
                with pytest.raises(InvalidSetting, match="token") as caught:
                    await engine.add([new(1)])
                assert secret not in str(caught.value)
            await engine.close()
        async with httpx.AsyncClient(base_url=served.url, timeout=30, verify=NO_CERTIFICATES) as http:
            answers = {}
            for scope, secret in secrets.items():
                headers = {"Authorization": f"Bearer {secret}"}
                registered = await http.post("/internal/workers/register", json={}, headers=headers)
                scraped = await http.get("/metrics", headers=headers)
                answers[scope] = registered.status_code, scraped.status_code
            nobody = (await http.get("/metrics")).status_code
    assert answers == {
        Scope.READ: (403, 200),
        Scope.SUBMIT: (403, 403),
        Scope.WORK: (200, 403),
        Scope.OPERATE: (403, 200),
        Scope.ADMIN: (200, 200),
        Scope.ENGINE: (403, 403),
    }
    assert nobody == 401


async def test_the_worker_protocol_is_described_and_the_engine_port_is_not(app: Litestar) -> None:
    described = app.openapi_schema.to_schema()
    paths = [path for path in described["paths"] if path.startswith("/internal")]
    assert sorted(paths) == [
        "/internal/workers/register",
        "/internal/workers/{worker_id}/heartbeat",
        "/internal/workers/{worker_id}/poll",
        "/internal/workers/{worker_id}/result",
    ]
    poll = described["paths"]["/internal/workers/{worker_id}/poll"]["post"]
    assert poll["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("Polled")
    assert [each["name"] for each in poll["parameters"]] == ["worker_id"]
