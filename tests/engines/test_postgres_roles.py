"""The roles of docs/servers.md on a real Postgres: each can do its work and nothing else."""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest

import qo
from qo.audit import AuditTrail, compact_audit, new_record, read_audit
from qo.clock import system_clock
from qo.errors import Refused, StorageError
from qo.model import ANY, Status
from qo.monitor import Monitor
from qo.notes import TOKENS
from tests.servers.postgres import PostgresServer, url

__all__ = ["url"]  # a fixture
DOCS = Path(__file__).parents[2] / "docs" / "servers.md"
ROLES = ("qo_reader", "qo_producer", "qo_worker")


@pytest.fixture
async def login(postgres: PostgresServer, url: str) -> AsyncIterator[Callable[[str], str]]:
    """The URL of a user with one of the roles."""
    async with qo.connect(url):
        pass
    (text,) = re.findall(r"```sql\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    text = re.sub(r"\bqo\.", "test.", text).replace("SCHEMA qo ", "SCHEMA test ")
    drop = "".join(f"DROP OWNED BY {role}, {role}_login; DROP ROLE {role}, {role}_login;" for role in ROLES)
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute(text + "".join(f"CREATE ROLE {role}_login LOGIN; GRANT {role} TO {role}_login;" for role in ROLES))
        yield lambda role: url.replace("qo@", f"{role}_login@")
        db.execute(drop)


async def test_each_role_can_do_its_work(url: str, login: Callable[[str], str]) -> None:
    async with qo.connect(login("qo_producer")) as client:
        first = await client.enqueue("work", 1)
        for _ in range(2):
            second = await client.enqueue("later", 2, delay=60, idempotency_key="once")
        await client.submit_many([client.new_task(f"type{n}", b"1") for n in range(20)])
        task = await client.get(first.id)
        assert task is not None and task.status is Status.PENDING
    async with qo.connect(login("qo_worker")) as client:
        (task,) = await client.dequeue("work")
        await client.ack(task, "done")
        (failing,) = await client.dequeue("type0")
        await client.nack(failing, "no luck")
        assert (await Monitor(client, id="m").check()).led
        await client.controls.pause()
        await client.cancel(second.id)
        await client.delete(second.id)
        now = system_clock()
        await AuditTrail(client.engine, clock=system_clock).record(
            new_record(at=now, actor="cli", who="ops", action="pause")
        )
    async with qo.connect(login("qo_reader")) as client:
        assert await client.result(first.id) == "done"
        assert len(await client.list()) == 21
        assert len(await client.history(first.id)) == 3
        assert (await client.stats())["completed"] == 1
        assert (await client.controls.read()).paused
    async with qo.connect(url) as client:  # the owner
        await compact_audit(client.engine, now)
        (record,) = (await read_audit(client.engine, now=now, limit=9)).records
        assert (record.action, record.verified) == ("pause", False)  # a worker may add any record


async def test_no_role_reaches_tokens_and_the_audit_trail(url: str, login: Callable[[str], str]) -> None:
    async with qo.connect(url) as client:
        await client.engine.write_note(TOKENS, b"{}", expected=ANY)
        await client.engine.write_note("audit/new/1", b"{}", expected=ANY)
    for role in ROLES:
        async with qo.connect(login(role)) as client:
            for name in (TOKENS, "audit/new/1"):
                with pytest.raises(StorageError):
                    await client.engine.read_note(name)
                with pytest.raises(StorageError):
                    await client.engine.notes(name)
                with pytest.raises(StorageError):
                    await client.engine.write_note(name, b"mine", expected=ANY)
                with pytest.raises(StorageError):
                    await client.engine.drop_note(name)
            with pytest.raises(Refused):
                await compact_audit(client.engine, 0.0)
    async with qo.connect(url) as client:
        note = await client.engine.read_note(TOKENS)
        assert note is not None and note.data == b"{}"


async def test_a_role_is_refused_the_operations_of_higher_roles(login: Callable[[str], str]) -> None:
    async with qo.connect(login("qo_producer")) as client:
        submitted = await client.enqueue("work")
        for attempt in (
            client.dequeue("work"),
            client.cancel(submitted.id),
            client.engine.delete([submitted.id]),
            client.engine.write_note("control", b"{}", expected=ANY),
        ):
            with pytest.raises(StorageError):
                await attempt
    async with qo.connect(login("qo_reader")) as client:
        for refused in (client.enqueue("work"), client.dequeue("work"), client.cancel(submitted.id)):
            with pytest.raises(StorageError):
                await refused
    with psycopg.connect(login("qo_worker").partition("?")[0], autocommit=True) as db:
        for statement in ("DROP TABLE test.tasks", "CREATE TABLE test.mine ()", "DELETE FROM test.schema_version"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                db.execute(statement)
