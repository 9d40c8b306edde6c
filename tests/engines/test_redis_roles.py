"""The users of docs/servers.md on a real server: each can do its work and nothing else."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as driver

import qo
from qo.audit import AuditTrail, compact_audit, new_record, read_audit
from qo.clock import system_clock
from qo.errors import Refused, StorageError
from qo.model import ANY, NEW, Status
from qo.monitor import Monitor
from qo.notes import TOKENS
from tests.engines.redis_engines import write_format_3
from tests.servers.redis import Server

DOCS = Path(__file__).parents[2] / "docs" / "servers.md"
LESSER = ("qo-worker", "qo-producer", "qo-reader")


@pytest.fixture
def login(redis_server: Server) -> Iterator[Callable[[str], str]]:
    """The URL of a user."""
    (text,) = re.findall(r"```text\n(user qo-admin.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    lines = [line.split() for line in text.replace("{qo}", "{roles}").splitlines()]
    with driver.Redis(port=redis_server.port) as db:
        for _, name, *rules in lines:
            db.execute_command("ACL", "SETUSER", name, "reset", *rules)
        yield lambda name: redis_server.url.replace("redis://", f"redis://{name}:secret@") + "?prefix=roles"
        db.execute_command("ACL", "DELUSER", *(name for _, name, *_ in lines))
        db.delete(*db.keys("{roles}*"))


async def test_each_user_can_do_its_work(login: Callable[[str], str]) -> None:
    async with qo.connect(login("qo-admin")) as client:
        await client.engine.write_note(TOKENS, b"{}", expected=NEW)
    async with qo.connect(login("qo-producer")) as client:
        first = await client.enqueue("work", 1)
        for _ in range(2):
            second = await client.enqueue("later", 2, delay=60, idempotency_key="once")
        await client.submit_many([client.new_task(f"type{n}", b"1") for n in range(20)])
        task = await client.get(first.id)
        assert task is not None and task.status is Status.PENDING
    async with qo.connect(login("qo-worker")) as client:
        (task,) = await client.dequeue("work", wait=5)
        await client.ack(task, "done")
        (failing,) = await client.dequeue("type0")
        await client.nack(failing, "no luck")
        assert (await Monitor(client, id="m").check()).led
        await client.controls.pause()
        await client.cancel(second.id)
        await client.delete(second.id)
        now = system_clock()
        record = new_record(at=now, actor="cli", who="ops", action="pause")
        await AuditTrail(client.engine, clock=system_clock).record(record)
    async with qo.connect(login("qo-reader")) as client:
        assert await client.result(first.id) == "done"
        assert len(await client.list()) == 21
        assert len(await client.history(first.id)) == 3
        assert (await client.stats())["completed"] == 1
        assert (await client.controls.read()).paused
    async with qo.connect(login("qo-admin")) as client:
        await compact_audit(client.engine, now)
        (each,) = (await read_audit(client.engine, now=now, limit=9)).records
        assert (each.action, each.verified) == ("pause", False)  # a worker may add any record


async def test_no_other_user_reaches_tokens_and_the_audit_trail(login: Callable[[str], str]) -> None:
    async with qo.connect(login("qo-admin")) as client:
        await client.engine.write_note(TOKENS, b"{}", expected=ANY)
        await client.engine.write_note("audit/new/1", b"{}", expected=ANY)
    for name in LESSER:
        async with qo.connect(login(name)) as client:
            for protected in (TOKENS, "audit/new/1"):
                with pytest.raises(StorageError):
                    await client.engine.read_note(protected)
                with pytest.raises(StorageError):
                    await client.engine.notes(protected)
                with pytest.raises(StorageError):
                    await client.engine.write_note(protected, b"mine", expected=ANY)
            with pytest.raises(StorageError):
                await client.engine.drop_note(TOKENS)
    async with qo.connect(login("qo-admin")) as client:
        note = await client.engine.read_note(TOKENS)
        assert note is not None and note.data == b"{}"


async def test_a_user_is_refused_the_operations_of_higher_users(login: Callable[[str], str]) -> None:
    async with qo.connect(login("qo-admin")) as client:
        submitted = await client.enqueue("work")
    async with qo.connect(login("qo-producer")) as client:
        for attempt in (
            client.dequeue("work"),
            client.cancel(submitted.id),
            client.engine.delete([submitted.id]),
            client.engine.write_note("control", b"{}", expected=ANY),
        ):
            with pytest.raises(Refused, match="Roles in Redis"):
                await attempt
    async with qo.connect(login("qo-reader")) as client:
        for refused in (client.enqueue("work"), client.dequeue("work"), client.cancel(submitted.id)):
            with pytest.raises(StorageError):
                await refused
    async with qo.connect(login("qo-admin")) as client:
        task = await client.get(submitted.id)
        assert task is not None and task.status is Status.PENDING and task.attempt == 0
        assert [task.id for task in await client.dequeue("work")] == [submitted.id], "nothing was left half-way"
    for name in (*LESSER, "qo-admin"):
        with driver.Redis.from_url(login(name).partition("?")[0]) as db:
            for command in (
                "FLUSHALL",
                "KEYS *",
                "CONFIG GET *",
                "GET elsewhere",
                "ACL LIST",
                "SCRIPT FLUSH",
                "FUNCTION LIST",
            ):
                with pytest.raises(driver.exceptions.NoPermissionError):
                    db.execute_command(*command.split())


@pytest.mark.parametrize("name", ["qo-producer", "qo-reader"])
async def test_a_user_who_may_not_migrate_a_queue_changes_nothing(
    login: Callable[[str], str], redis_server: Server, name: str
) -> None:
    async with qo.connect(login("qo-admin")) as client:
        submitted = [(await client.enqueue("work", n)).id for n in range(5)]
    with driver.Redis(port=redis_server.port) as db:
        write_format_3(db, "{roles}:")
        before = {key: db.dump(key) for key in db.keys("{roles}:[^r]*") + db.keys("{roles}:ready*")}
        for _ in range(2):
            with pytest.raises(Refused, match="run qo migrate as a user"):
                async with qo.connect(login(name)):
                    pass
        assert {key: db.dump(key) for key in db.keys("{roles}:[^r]*") + db.keys("{roles}:ready*")} == before
    async with qo.connect(login("qo-worker")) as client:
        assert [task.id for task in await client.dequeue("work", batch_size=9)] == submitted
    async with qo.connect(login("qo-producer")) as client:
        await client.enqueue("work")
