"""The HTTP engine with lost responses, unreachable servers and wrong tokens."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from qo import wire
from qo.client import Client
from qo.engines.http import HttpEngine, examine
from qo.engines.http.client import address_of
from qo.engines.http.engine import split
from qo.engines.memory import MemoryEngine
from qo.engines.sqlite import SqliteEngine
from qo.errors import Conflict, InvalidSetting, InvalidTask, OutcomeUnknown, StorageError
from qo.model import ANY, NEW, Added, ClaimRequest, Filter, NewTask, Note, Status, cancel, complete
from qo.notes import TOKENS
from qo.testing.samples import claim_one, claim_request, new, stored, task_id
from tests.engines.http_faults import FaultyProxy
from tests.engines.http_server import Server, server
from tests.servers.plain_http import NO_CERTIFICATES


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture(params=["memory", "sqlite"])
async def client(served: Server, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    engine = MemoryEngine() if request.param == "memory" else SqliteEngine(tmp_path / "qo.db")
    async with served.serving(engine) as client:
        yield client


@pytest.fixture
async def proxy(served: Server) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(urlsplit(served.url).port or 0) as proxy:
        yield proxy


@pytest.fixture
async def engine(client: Client, proxy: FaultyProxy) -> AsyncIterator[HttpEngine]:  # noqa: ARG001 - behind the proxy
    engine = HttpEngine(address_of(proxy.url))
    await engine.open()
    yield engine
    await engine.close()


# --- lost responses


async def test_every_write_whose_response_was_lost_is_answered_truthfully(
    engine: HttpEngine, proxy: FaultyProxy
) -> None:
    proxy.lose = 1
    assert await engine.add([new(0), new(1)]) == [(task_id(0), True), (task_id(1), True)]
    proxy.lose = 2
    first = await claim_one(engine)
    second = await claim_one(engine)
    assert first.id != second.id and first.attempt == second.attempt == 1
    proxy.lose = 1
    assert await engine.apply([complete(first), cancel(second.id)]) == [True, True]
    proxy.lose = 1
    assert await engine.delete([first.id]) == [True]
    proxy.lose = 1
    version = await engine.write_note("switch", b"on", expected=NEW)
    assert await engine.read_note("switch") == Note("switch", b"on", version)
    proxy.lose = 1
    await engine.drop_note("switch")
    assert proxy.lost == 7


async def test_a_restarted_server_reports_what_was_applied_and_otherwise_that_it_is_unknown(
    engine: HttpEngine, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server forgets its responses, as if it were restarted between an attempt and its repeat."""
    await engine.add([new(0), new(1)])
    task = await claim_one(engine)
    monkeypatch.setattr("qo.web.remote.engine.MAX_RESPONSES", 0)
    proxy.lose = 1
    assert len(await engine.claim(claim_request(limit=1))) == 1
    proxy.lose = 1
    assert await engine.apply([complete(task)]) == [True]
    for write in (
        lambda: engine.add([new(5)]),
        lambda: engine.apply([cancel(task_id(1))]),
        lambda: engine.delete([task.id]),
        lambda: engine.write_note("switch", b"on", expected=NEW),
    ):
        proxy.lose = 1
        with pytest.raises(OutcomeUnknown):
            await write()
    assert (await stored(engine, 5)).status is Status.PENDING
    assert await engine.add([new(5)]) == [(task_id(5), False)]


async def test_a_first_attempt_that_arrives_late_claims_nothing_more(served: Server, client: Client) -> None:
    await served.there(_add(client, 4))
    asked = claim_request(limit=2)
    headers = {"Content-Type": wire.MEDIA_TYPE, wire.REQUEST: asked.lease_id}
    async with httpx.AsyncClient(base_url=served.url + wire.PATH, verify=NO_CERTIFICATES) as http:
        repeat = await http.post("/claim", content=wire.encode(replace(asked, is_repeat=True)), headers=headers)
        late = await http.post("/claim", content=wire.encode(asked), headers=headers)
    assert late.content == repeat.content and wire.REMEMBERED in late.headers
    assert len(await served.there(client.engine.find(Filter(statuses=(Status.RUNNING,)), limit=9))) == 2


async def _add(client: Client, number: int) -> None:
    await client.engine.add([new(n) for n in range(number)])


async def test_a_cancelled_claim_releases_its_tasks(engine: HttpEngine) -> None:
    await engine.add([new(0)])
    claiming = asyncio.create_task(engine.claim(claim_request()))
    await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await engine.close()
    await engine.open()
    assert (await stored(engine)).status is Status.PENDING


# --- unreachable, busy and foreign servers


async def test_an_unreachable_server_is_a_storage_error_with_its_address(unused_tcp_port: int) -> None:
    engine = HttpEngine(address_of(f"http://127.0.0.1:{unused_tcp_port}"))
    await engine.open()
    for call in (engine.count(), engine.add([new()]), engine.wait(claim_request(), 1)):
        with pytest.raises(
            StorageError, match=f"127.0.0.1:{unused_tcp_port} cannot be reached; check the address"
        ) as caught:
            await call
        assert not isinstance(caught.value, OutcomeUnknown)  # nothing was sent
    await engine.close()
    with pytest.raises(StorageError, match="not open"):
        await engine.count()


class FailingAtFirst(MemoryEngine):
    """A store that raises an error for the first calls."""

    def __init__(self, error: StorageError, times: int) -> None:
        super().__init__()
        self.error, self.times = error, times

    async def add(self, tasks: object) -> list[Added]:
        if self.times:
            self.times -= 1
            raise self.error
        return await super().add(tasks)  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "times"), [(StorageError("disk full"), 1), (OutcomeUnknown("cut"), 1)])
async def test_a_call_is_repeated_after_the_time_that_the_server_asks_for(
    served: Server, error: StorageError, times: int
) -> None:
    async with served.serving(FailingAtFirst(error, times)):
        engine = HttpEngine(address_of(served.url))
        await engine.open()
        began = asyncio.get_running_loop().time()
        assert await engine.add([new()]) == [(task_id(0), True)]
        assert asyncio.get_running_loop().time() - began >= 1  # Retry-After
        await engine.close()


async def test_errors_keep_their_class(engine: HttpEngine) -> None:
    with pytest.raises(InvalidTask, match="queue: ") as caught:
        await engine.add([new(queue="../etc")])
    assert caught.value.field == "queue"
    await engine.add([new()])
    with pytest.raises(InvalidSetting, match="position in a listing"):
        await engine.find(Filter(), limit=1, after="nonsense")
    await engine.write_note("a", b"", expected=NEW)
    with pytest.raises(Conflict):
        await engine.write_note("a", b"", expected=NEW)


@pytest.mark.parametrize("status", [404, 401, 403, 500])
async def test_a_server_that_is_not_qo_is_reported(status: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno" % status)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        engine = HttpEngine(address_of(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"))
        await engine.open()
        with pytest.raises(InvalidSetting if status in {401, 403} else StorageError) as caught:
            await engine.count()
        assert {404: "not a qo server", 500: "status 500"}.get(status, "token") in str(caught.value)
        await engine.close()


# --- requests that are refused


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("call", "request_"),
    [
        ("read_note", TOKENS),
        ("write_note", wire.WriteNote(name=TOKENS, data=b"{}", expected=ANY)),
        ("drop_note", TOKENS),
        ("read_note", "tokens"),
        ("write_note", wire.WriteNote(name="tokens", data=b"{}", expected=ANY)),
        ("read_note", "../secret"),
        ("read_note", "workers/../../x"),
        ("notes", "../"),
        ("claim", claim_request(limit=1, lease=float("nan"))),
        ("claim", claim_request(worker_id="a/b")),
        ("claim", claim_request(queues=("x" * 99,))),
        ("claim", claim_request(lease_id="")),
        ("get", ["1"]),
        ("history", "x"),
        ("apply", [replace(cancel(task_id(0)), error="x" * 20_000)]),
        ("apply", [replace(cancel(task_id(0)), delay=-1.0)]),
        ("add", [new(payload=b"x" * 300_000)]),
        ("add", [new(timeout=float("inf"))]),
        ("wait", wire.Wait(request=claim_request(), timeout=float("nan"))),
        ("find", {"where": {}, "limit": "x"}),
        ("claim", 5),
        ("add", {"a": 1}),
    ],
)
async def test_invalid_requests_are_refused(served: Server, call: str, request_: object) -> None:
    async with httpx.AsyncClient(base_url=served.url + wire.PATH, verify=NO_CERTIFICATES) as http:
        headers = {"Content-Type": wire.MEDIA_TYPE}
        response = await http.post(f"/{call}", content=wire.encode(request_), headers=headers)
    assert response.status_code == 400, response.content
    assert wire.error_of(response.content) is not None


@pytest.mark.usefixtures("client")
async def test_bodies_are_limited_in_size_and_type(served: Server) -> None:
    async with httpx.AsyncClient(base_url=served.url + wire.PATH, verify=NO_CERTIFICATES) as http:
        headers = {"Content-Type": wire.MEDIA_TYPE}
        large = await http.post("/add", content=b"x" * (wire.BODY_LIMIT + 1), headers=headers)
        deep = await http.post("/find", content=b"\x91" * 100_000, headers=headers)
        empty = await http.post("/add", headers=headers)
        typed = await http.post("/count", content=b"\xc0", headers={"Content-Type": "application/json"})
        unknown = await http.post("/drop_database", content=b"\xc0", headers=headers)
    assert [each.status_code for each in (large, deep, empty, typed, unknown)] == [413, 400, 400, 415, 404]


async def test_tokens_are_not_listed_among_the_notes(engine: HttpEngine, client: Client, served: Server) -> None:
    for name in (TOKENS, "tokens"):
        await served.there(client.engine.write_note(name, b"secret", expected=ANY))
    assert await engine.notes("") == []


# --- addresses, batches, doctor, forks


def test_addresses_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QO_TOKEN", raising=False)
    assert address_of("http://127.0.0.1:8000/") == ("http://127.0.0.1:8000", "")
    assert address_of("https://worker:a%2Fb@[::1]:9/x") == ("https://[::1]:9/x", "a/b")
    monkeypatch.setenv("QO_TOKEN", "env")
    assert address_of("http://h") == ("http://h", "env")
    assert "secret" not in repr(address_of("http://w:secret@h"))
    for wrong in ("http://secret@h", "http://", "http://h:99999", "http://h?x=1"):
        with pytest.raises(InvalidSetting) as caught:
            address_of(wrong)
        assert "secret" not in str(caught.value)


def test_batches_are_split_by_size_and_by_number() -> None:
    large = [new(n, payload=b"x" * 250_000) for n in range(40)]
    sizes = [len(wire.encode(batch)) for batch in split(large)]
    assert len(sizes) > 1 and max(sizes) < wire.BODY_LIMIT
    assert [len(batch) for batch in split([task_id(n) for n in range(5001)])] == [5000, 1]


async def test_a_batch_of_large_tasks_arrives(engine: HttpEngine) -> None:
    added = await engine.add([new(n, payload=b"x" * 250_000) for n in range(40)])
    assert all(each.new for each in added) and len(added) == 40
    assert sum([len(task.payload) for task in await engine.claim(claim_request(limit=40))]) == 40 * 250_000


async def test_the_doctor_examines_a_server(served: Server, client: Client, unused_tcp_port: int) -> None:
    await client.engine.add([new(n, priority=9) for n in range(3)])
    findings = {finding.name: finding for finding in await examine(served.url)}
    assert findings["server"].ok and findings["protocol"].ok and findings["store"].ok
    assert "holds 3 tasks" in findings["store"].detail
    (away,) = await examine(f"http://127.0.0.1:{unused_tcp_port}")
    assert not away.ok and "cannot be reached" in away.detail


async def test_messages_of_the_port_are_decoded_unchanged() -> None:
    sample: ClaimRequest = claim_request(per_type_limits={"a": 1}, capabilities=frozenset({"x"}), is_repeat=True)
    assert wire.decode_request("claim", wire.encode(sample)) == sample
    task = NewTask(id=task_id(0), queue="q", type="t", ageing=float("inf"), run_at=1.5, payload=b"\x00\xff")
    assert wire.decode_request("add", wire.encode([task])) == [task]
    with pytest.raises(msgspec.ValidationError):
        wire.decode_answer("claim", wire.encode([{"id": 1}]))
    assert wire.REQUESTS.keys() == wire.ANSWERS.keys()


async def test_an_engine_opened_before_a_fork_is_refused(engine: HttpEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StorageError, match="fork"):
        await engine.count()
    monkeypatch.undo()
