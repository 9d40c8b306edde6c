"""Tokens, scopes, rates."""

import asyncio
import socket
from typing import Any, ClassVar

import pytest

from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting, NameNotFound
from qo.model import Filter, Note
from qo.notes import TOKENS
from qo.testing import ManualClock
from qo.web import WebSettings
from qo.web.callers import LOCAL_CALLER, AccessLimits, Scope
from qo.web.http.access import Gate, RequestRateLimit, is_loopback
from qo.web.http.tokens import (
    KnownCallers,
    Tokens,
    TokenUseRecorder,
    create_token,
    forget_tokens,
    read_token_uses,
    read_tokens,
    revoke_token,
)
from qo.web.oidc.settings import OidcSettings
from tests.conditions import TIMEOUT
from tests.web.serving import Served, served

LOGIN = OidcSettings(issuer="https://accounts.example.com", client_id="qo", roles={"ops": frozenset({Scope.OPERATE})})


def token(api: Served, *scopes: str, name: str = "") -> str:
    made = create_token(
        api.qo_client.engine, name or "-".join(scopes), [Scope(scope) for scope in scopes], now=0.0, lifetime=None
    )
    return api.run(made).secret


def call(api: Served, method: str, path: str, body: Any, secret: str | None) -> int:
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    more = {} if body is None else {"json": body}
    return api.client.request(method, path, headers=headers, **more).status_code


def test_files_of_the_dashboard_need_no_token():
    with served(MemoryEngine(), WebSettings(token_required=True)) as api:
        for path in ("/docs", "/ui/", "/ui/main.js", "/ui/config.json"):
            assert call(api, "GET", path, None, None) == 200


def test_a_401_explains_how_to_authenticate():
    with served(MemoryEngine(), WebSettings(token_required=True)) as api:
        answer = api.client.get("/api/v1/tasks")
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["code"] == "unauthorized"
        basic = api.client.get("/api/v1/tasks", headers={"authorization": "Basic eDp5"})
        assert basic.status_code == 401


def test_without_any_token_this_machine_is_served_and_with_one_it_needs_a_token():
    with served(MemoryEngine()) as api:
        token(api, "read")  # before the first request, which would remember that there is none for a second
        assert call(api, "GET", "/api/v1/tasks", None, None) == 401
    with served(MemoryEngine()) as api:
        assert call(api, "GET", "/api/v1/tasks", None, None) == 200


async def test_once_there_was_a_token_a_gate_stays_shut():
    """While it runs, and after a restart; also if the note itself is lost under a running server."""
    engine, boot = MemoryEngine(), ManualClock()

    def gate() -> Gate:
        return Gate(engine, WebSettings(), ManualClock(), elapsed=boot)

    running = gate()
    assert await running.is_admitted(LOCAL_CALLER)
    made = await create_token(engine, "only", [Scope.ADMIN], now=0.0)
    boot.advance(1.0)
    assert not await running.is_admitted(LOCAL_CALLER) and await running.is_admitted(made.token.caller())
    await revoke_token(engine, "only")
    boot.advance(1.0)
    assert not await running.is_admitted(LOCAL_CALLER) and not await running.is_admitted(made.token.caller())
    assert not await gate().is_admitted(LOCAL_CALLER)
    await forget_tokens(engine)
    boot.advance(1.0)
    assert not await running.is_admitted(LOCAL_CALLER) and await gate().is_admitted(LOCAL_CALLER)


async def test_tokens_are_read_again_before_a_request_has_to_wait_for_them():
    class Frozen(MemoryEngine):
        thawed = asyncio.Event()

        async def read_note(self, name: str) -> Note | None:
            await self.thawed.wait()
            return await super().read_note(name)

    engine, boot = Frozen(), ManualClock()
    gate = Gate(engine, WebSettings(), ManualClock(), elapsed=boot)
    engine.thawed.set()
    made = (await create_token(engine, "only", [Scope.ADMIN], now=0.0)).token.caller()
    assert await gate.is_admitted(made)
    await revoke_token(engine, "only")
    engine.thawed.clear()
    boot.advance(0.9)
    assert await gate.is_admitted(made), "the last read is young enough while the next is in progress"
    engine.thawed.set()
    await gate.finish()
    engine.thawed.clear()
    boot.advance(0.9)
    assert not await asyncio.wait_for(gate.is_admitted(made), TIMEOUT), "the next read is known, and not waited for"
    boot.advance(0.1)
    late = asyncio.create_task(gate.is_admitted(made))
    assert not (await asyncio.wait([late], timeout=0.05))[0], "an old read is not used"
    engine.thawed.set()
    assert await late is False
    await gate.finish()


def test_revoking_the_last_token_leaves_a_server_shut():
    with served(MemoryEngine()) as api:
        token(api, "admin", name="only")
        api.run(revoke_token(api.qo_client.engine, "only"))
        assert call(api, "GET", "/api/v1/tasks", None, None) == 401


async def test_the_last_use_of_a_token_is_written_apart_from_the_requests():
    engine = MemoryEngine()
    made = await create_token(engine, "ci", [Scope.READ], now=0.0)
    await create_token(engine, "other", [Scope.READ], now=0.0)
    first, second = TokenUseRecorder(engine), TokenUseRecorder(engine)
    first.record(made.token.id, 7.0)
    second.record(made.token.id, 5.0)
    second.record("revoked", 5.0)
    assert (await read_token_uses(engine)).used_at == {}
    await first.flush()
    await second.flush()
    assert (await read_token_uses(engine)).used_at == {made.token.id: 7.0}


@pytest.mark.parametrize(
    ("queues", "types", "where", "narrowed"),
    [
        ([], [], Filter(queues=("a",)), Filter(queues=("a",))),
        (["a", "b"], [], Filter(), Filter(queues=("a", "b"))),
        (["a", "b"], ["t"], Filter(queues=("b", "c")), Filter(queues=("b",), types=("t",))),
        (["a"], [], Filter(queues=("c",)), None),
        ([], ["t"], Filter(types=("u",)), None),
    ],
)
def test_limits_narrow_a_filter(queues: list[str], types: list[str], where: Filter, narrowed: Filter | None):
    assert AccessLimits(queues=frozenset(queues), types=frozenset(types)).narrow(where) == narrowed


@pytest.mark.parametrize(
    "settings",
    [
        WebSettings(hosts=("queue.example.com",)),
        WebSettings(oidc=LOGIN),
    ],
    ids=["a name", "a login"],
)
def test_a_server_with_a_name_or_a_login_is_reached_from_elsewhere_and_asks(settings: WebSettings):
    with served(MemoryEngine(), settings) as api:
        assert call(api, "GET", "/api/v1/tasks", None, None) == 401


async def test_without_any_token_no_other_machine_is_served():
    gate = Gate(MemoryEngine(), WebSettings(), ManualClock())

    class Caller:
        host = "192.0.2.7"

    class Connection:
        client = Caller()
        scope: ClassVar[dict[str, Any]] = {"headers": []}

    assert gate.is_open(KnownCallers(Tokens()), Connection()) is False  # type: ignore[arg-type]
    assert not is_loopback("192.0.2.7") and is_loopback("::1") and is_loopback("localhost")


def test_without_any_token_a_forwarded_request_is_refused(one_server: Served):
    """A proxy on this machine may rewrite Host, and then its callers look like this machine."""
    marks = {
        "X-Forwarded-For": "192.0.2.7",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Anything": "",
        "Forwarded": "for=192.0.2.7",
        "Via": "1.1 proxy",
        "X-Real-IP": "127.0.0.1",
        "CF-Connecting-IP": "192.0.2.7",
        "True-Client-IP": "192.0.2.7",
        "X-Envoy-External-Address": "192.0.2.7",
        "Fly-Client-IP": "192.0.2.7",
    }
    for name, value in marks.items():
        for path in ("/api/v1/tasks", "/api/v1/dashboard/session", "/metrics"):
            assert one_server.client.get(path, headers={name: value}).status_code == 401, name
        assert one_server.post("/api/v1/tasks", {"task_type": "t"}, headers={name: value}).status_code == 401, name
        assert one_server.client.get("/healthz", headers={name: value}).status_code == 200
    assert one_server.client.get("/api/v1/tasks", headers={"X-Amzn-Trace-Id": "Root=1-2-3"}).status_code == 200


def test_without_any_token_http_1_0_is_refused(one_server: Served):
    """nginx speaks it to the servers behind it unless told otherwise, and adds no header that would show it."""
    host, port = one_server.client.base_url.host, one_server.client.base_url.port
    with socket.create_connection((host, port), timeout=TIMEOUT) as connection:
        connection.sendall(f"GET /api/v1/tasks HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
        assert connection.makefile("rb").readline().split()[1] == b"401"


def test_with_a_token_a_forwarded_request_is_served_as_any_other():
    with served(MemoryEngine()) as api:
        secret = token(api, "read")
        headers = {"authorization": f"Bearer {secret}", "x-forwarded-for": "192.0.2.7", "via": "1.1 proxy"}
        assert api.client.get("/api/v1/tasks", headers=headers).status_code == 200


async def test_only_hashes_are_stored():
    engine = MemoryEngine()
    made = await create_token(engine, "ci", [Scope.READ], now=5.0, lifetime=10.0)
    assert len(made.secret) == 67 and made.secret.startswith("qo_")
    note = await engine.read_note(TOKENS)
    assert note is not None and made.secret.encode() not in note.data and made.secret[3:].encode() not in note.data
    known = KnownCallers(await read_tokens(engine))
    assert known.match(made.secret, now=14.9) == made.token.caller()
    assert known.match(made.secret, now=15.0) is None
    assert known.match(made.secret + "0", now=6.0) is None


async def test_a_name_is_taken_once_and_free_again_when_revoked():
    engine = MemoryEngine()
    made = await create_token(engine, "ci", [Scope.READ], now=0.0)
    with pytest.raises(InvalidSetting):
        await create_token(engine, "ci", [Scope.ADMIN], now=0.0)
    assert await revoke_token(engine, made.token.id) == made.token
    assert KnownCallers(await read_tokens(engine)).match(made.secret, now=0.0) is None
    with pytest.raises(NameNotFound):
        await revoke_token(engine, "ci")


def test_an_allowance_fills_as_time_passes():
    clock = ManualClock()
    allowance = RequestRateLimit(2.0, clock)
    assert [allowance.take("a") for _ in range(2)] == [0.0, 0.0]
    assert allowance.take("a") == pytest.approx(0.5)
    assert allowance.take("b") == 0.0
    clock.advance(0.5)
    assert allowance.take("a") == 0.0 and allowance.take("a") > 0
    assert RequestRateLimit(0.0, clock).take("a") == 0.0


def test_more_requests_than_allowed_are_429():
    with served(MemoryEngine(), WebSettings(rate_limit=0.001)) as api:
        assert api.client.get("/api/v1/tasks").status_code == 200
        answer = api.client.get("/api/v1/tasks")
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 900
        assert api.client.get("/healthz").status_code == 200
