"""People who log in where there are two servers, and where the store or the provider does not answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from joserfc.jwk import ECKey, KeySet

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from qo.web.oidc import provider as oidc_provider_module
from qo.web.oidc import routes
from qo.web.oidc.login import LoginAttempt
from qo.web.oidc.sessions import SESSIONS, end_sessions
from qo.web.oidc.settings import OidcSettings
from tests.conditions import delay, until
from tests.servers.oidc import LoginPlace
from tests.web.serving import in_process

ROLES = {"ops": frozenset({Scope.OPERATE})}
ATTEMPT = LoginAttempt("0" * 64, "/")


def login_settings(issuer: str) -> WebSettings:
    return WebSettings(oidc=OidcSettings(issuer=issuer, client_id="qo", client_secret="s", roles=ROLES))


async def log_in(at: httpx.AsyncClient, back_at: httpx.AsyncClient, place: LoginPlace, name: str) -> str:
    """Begin at one server and come back to another; where the browser ends up."""
    begun = await at.get("/auth/login")
    back_at.cookies.update(at.cookies)
    url = await asyncio.to_thread(place.approve, begun.headers["location"], name)
    return str((await back_at.get(url)).headers["location"])


async def is_known(client: httpx.AsyncClient) -> bool:
    return (await client.get("/api/v1/dashboard/session")).status_code == 200


async def until_logged_out(client: httpx.AsyncClient) -> None:
    """A server remembers sessions for a second."""

    async def is_forgotten() -> bool:
        return not await is_known(client)

    await until(is_forgotten)


async def test_two_servers_on_one_store_know_the_same_people(oidc_provider: LoginPlace) -> None:
    oidc_provider.make_user("two@example.com", groups=["ops"])
    engine, settings = MemoryEngine(), login_settings(oidc_provider.issuer)
    async with in_process(Client(engine), settings) as one, in_process(Client(engine), settings) as other:
        assert await log_in(one, other, oidc_provider, "two@example.com") == "../ui/#/"
        one.cookies.update(other.cookies)
        known = (await one.get("/api/v1/dashboard/session")).json()
        assert known["user"] == "two@example.com" and await is_known(other)
        csrf = {"x-csrf-token": known["csrf_token"]}
        assert (await other.post("/api/tasks/pause", headers=csrf)).status_code == 200  # the page's token holds there
        session = dict(one.cookies)
        assert (await other.post("/auth/logout", headers=csrf)).status_code == 200
        assert not await is_known(other)
        other.cookies.update(session)
        await until_logged_out(one)
        await until_logged_out(other)

        one.cookies.clear()
        other.cookies.clear()
        await log_in(one, other, oidc_provider, "two@example.com")
        one.cookies.update(other.cookies)
        assert await is_known(one) and await is_known(other)
        (ended,) = await end_sessions(engine, lambda session: session.name == "two@example.com")
        assert ended.groups == ("ops",)
        await until_logged_out(one)
        await until_logged_out(other)


class FrozenAtSessions(MemoryEngine):
    """A store that takes everything but the sessions of people, and does not answer then."""

    def __init__(self) -> None:
        super().__init__()
        self.is_frozen = False

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if self.is_frozen and name == SESSIONS:
            await asyncio.Event().wait()
        return await super().write_note(name, data, expected=expected)


async def test_a_store_that_does_not_respond_fails_the_login_and_blocks_no_one_else(
    oidc_provider: LoginPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_STORE_TIMEOUT", 1.0)
    oidc_provider.make_user("late@example.com", groups=["ops"])
    engine = FrozenAtSessions()
    async with in_process(Client(engine), login_settings(oidc_provider.issuer)) as client:
        made = await create_token(engine, "t", [Scope.READ], now=0.0)
        engine.is_frozen = True
        login = asyncio.create_task(log_in(client, client, oidc_provider, "late@example.com"))
        bearer = {"authorization": f"Bearer {made.secret}"}

        async def is_over() -> bool:
            assert (await client.get("/api/v1/tasks", headers=bearer)).status_code == 200
            return login.done()

        await until(is_over)
        assert await login == "../ui/#/login?problem=store"
        assert not client.cookies
        engine.is_frozen = False
        assert await log_in(client, client, oidc_provider, "late@example.com") == "../ui/#/"


@asynccontextmanager
async def trickling_provider(silent: str) -> AsyncIterator[str]:
    """A provider that answers one of its addresses with a byte now and then, and never to the end."""
    ended, handlers = asyncio.Event(), set[asyncio.Task[Any] | None]()
    keys = KeySet([ECKey.generate_key("P-256", {"kid": "k"})])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        except asyncio.IncompleteReadError:  # on a busy machine the client can give up before it sends its request
            writer.close()
            return
        answers: dict[str, Any] = {
            "/.well-known/openid-configuration": {
                "issuer": issuer,
                "authorization_endpoint": f"{issuer}/authorize",
                "token_endpoint": f"{issuer}/token",
                "jwks_uri": f"{issuer}/keys",
            },
            "/keys": keys.as_dict(private=False),
        }
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        if path == silent:
            while not ended.is_set():
                writer.write(b" ")
                await delay(0.02)  # slow, but not silent
        else:
            writer.write(json.dumps(answers.get(path, {})).encode())
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        try:
            yield issuer
        finally:
            ended.set()
            await asyncio.gather(*(each for each in handlers if each is not None))


@pytest.mark.parametrize("silent", ["/.well-known/openid-configuration", "/keys", "/token"])
async def test_a_provider_that_never_finishes_responding_fails_the_login_and_blocks_no_one_else(
    silent: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(oidc_provider_module, "_TOTAL_TIMEOUT", 1.0)
    engine = MemoryEngine()
    async with (
        trickling_provider(silent) as issuer,
        in_process(Client(engine), login_settings(issuer)) as client,
        asyncio.timeout(15),  # less than the provider may take for one byte after another
    ):
        made = await create_token(engine, "t", [Scope.READ], now=0.0)
        way = f"/auth/callback?code=c&state={ATTEMPT.state}" if silent == "/token" else "/auth/login"
        headers = {"cookie": f"qo-login={ATTEMPT.to_cookie()}"}
        login = asyncio.create_task(client.get(way, headers=headers))
        bearer = {"authorization": f"Bearer {made.secret}"}

        async def is_over() -> bool:
            assert (await client.get("/api/v1/tasks", headers=bearer)).status_code == 200
            return login.done()

        await until(is_over)
        assert (await login).headers["location"] == "../ui/#/login?problem=provider_down"
        assert "took too long" in caplog.text if silent == "/token" else "TimeoutError" in caplog.text
