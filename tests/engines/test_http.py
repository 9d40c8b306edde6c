from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from qo import wire
from qo.client import Client
from qo.engine import Engine
from qo.engines.http import HttpEngine
from qo.engines.http.client import address_of
from qo.engines.memory import MemoryEngine
from qo.engines.sqlite import SqliteEngine
from qo.errors import InvalidTask
from qo.model import ANY, Added, CountKey, Note, Status, complete
from qo.testing import EngineContract, ManualClock
from qo.testing.samples import claim_one, new, task_id
from tests.engines.contract_parts import CONTENT, left_to_torture
from tests.engines.damage import damage_sqlite
from tests.engines.few_histories import FewHistories
from tests.engines.http_server import Server, server


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with server() as running:
        yield running


class AdminNotesStayWithTheServer:
    """The port serves neither tokens nor the audit trail, because its clients may be workers."""

    async def test_notes_of_administrators_are_notes_like_any_other(self, engine: Engine) -> None:
        for call in (
            engine.read_note("admin/tokens"),
            engine.read_note("admin/sessions"),
            engine.write_note("admin/a", b"", expected=ANY),
            engine.drop_note("admin/a"),
            engine.write_note("audit/new/1", b"", expected=ANY),
            engine.drop_note("audit/new/1"),
        ):
            with pytest.raises(InvalidTask):
                await call
        assert await engine.notes("admin/") == []


class TestHttpOverMemory(FewHistories, AdminNotesStayWithTheServer, EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, served: Server) -> AsyncIterator[Engine]:
        self.below = MemoryEngine(clock)
        async with served.serving(self.below):
            engine = HttpEngine(address_of(served.url))
            await engine.open()
            yield engine
            await engine.close()

    def audited(self, engine: Engine) -> Engine:  # noqa: ARG002 - the server records what its callers do
        return self.below

    async def damage(self, engine: Engine, task_id: str) -> None:  # noqa: ARG002 - the server's store is damaged
        self.below.damage(task_id)

    async def test_the_server_names_the_next_task_under_a_key_for_a_client_that_does_not(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        submission = new(idempotency_key="k", window=10.0)
        await engine.add([submission])
        await engine.apply([complete(await claim_one(engine))])
        clock.advance(10)
        ((last, is_new),) = await engine.add([submission])
        assert is_new and last != task_id(0)
        assert await engine.add([submission]) == [(last, False)]
        with pytest.raises(InvalidTask, match=r"^next_id: "):
            await engine.add([new(1, idempotency_key="k", next_id="../1")])


# TestHttpOverMemory runs the whole contract: the server and the client do not know which store it is.
@left_to_torture(*CONTENT)
class TestHttpOverSqlite(FewHistories, AdminNotesStayWithTheServer, EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, served: Server, tmp_path: Path) -> AsyncIterator[Engine]:
        self.path = tmp_path / "qo.db"
        self.below = SqliteEngine(self.path, clock)
        async with served.serving(self.below):
            engine = HttpEngine(address_of(served.url))
            await engine.open()
            yield engine
            await engine.close()

    def audited(self, engine: Engine) -> Engine:  # noqa: ARG002 - the server records what its callers do
        return self.below

    async def damage(self, engine: Engine, task_id: str) -> None:  # noqa: ARG002 - the server's store is damaged
        other = SqliteEngine(self.path)
        await other.open()
        await damage_sqlite(other, task_id, "retry = '{\"half'")
        await other.close()


class _Roomy(MemoryEngine):
    payload_limit = 600_000


async def test_the_payload_limit_is_that_of_the_servers_store(served: Server) -> None:
    async with served.serving(_Roomy()), Client(HttpEngine(address_of(served.url))) as client:
        receipt = await client.enqueue("t", "x" * 500_000)  # the client does not know the server's limit yet
        assert client.payload_limit == 600_000
        with pytest.raises(InvalidTask, match="the limit is 600,000"):
            await client.enqueue("t", "x" * 600_000)
        (task,) = await client.dequeue("t")
        assert task.id == receipt.id
        await client.ack(task, "y" * 500_000)
        stored = await client.get(task.id)
        assert stored is not None and len(stored.result or b"") > 500_000
    async with served.serving(MemoryEngine()), Client(HttpEngine(address_of(served.url))) as client:
        with pytest.raises(InvalidTask, match="the limit is 262,144"):  # from the server
            await client.enqueue("t", "x" * 300_000)


def test_records_are_encoded_with_field_names() -> None:
    answers: dict[str, object] = {
        "add": [Added(task_id(1), new=True)],
        "count": {CountKey("q", "t", Status.PENDING, 3): 7},
        "read_note": Note("n", b"data", "1"),
        "notes": [Note("n", b"data", "1")],
    }
    for call, answer in answers.items():
        sent = msgspec.msgpack.decode(wire.encode_answer(call, answer))
        record = sent[0] if isinstance(sent, list) else sent
        assert isinstance(record, dict), call
        assert wire.decode_answer(call, wire.encode_answer(call, answer)) == answer
    assert wire.decode_answer("read_note", wire.encode_answer("read_note", None)) is None
