"""Encrypted payloads, results and errors: what the store sees, who can read it, and what happens without the key."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qo
from qo.client import Client
from qo.codec import SEALED, from_json, shown_text, to_json
from qo.encryption import Encrypted, EncryptedEngine
from qo.engine import Engine
from qo.engines import open_engine
from qo.model import ERROR_LIMIT, LOG_LIMIT, Filter, NewTask, Status, amend, complete, fail
from qo.schedules.document import document_of
from qo.tasks import HandlerOptions, Registry, make_handler
from qo.testing import EngineContract, ManualClock
from qo.testing.engine_notes import scheduler
from qo.worker import Worker, WorkerSettings
from tests.web.serving import served

KEY, OLD_KEY, OTHER_KEY = Encrypted.new_key(), Encrypted.new_key(), Encrypted.new_key()
OTHER_ID = "00000000-0000-4000-8000-000000000001"
SECRET = "4111 1111 1111 1111"  # must not be stored in clear text


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


class TestEncrypted(EngineContract):
    """Encryption changes nothing that the contract says."""

    @pytest.fixture
    async def engine(self, clock: ManualClock) -> Engine:
        inner = open_engine("memory://", clock=clock)
        return Encrypted([KEY]).wrap(inner)

    async def damage(self, engine: Engine, task_id: str) -> None:
        assert isinstance(engine, EncryptedEngine)
        engine.engine.damage(task_id)  # type: ignore[attr-defined]


async def test_the_store_contains_no_clear_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/qo.db"
    async with qo.connect(url, codec=Encrypted([KEY])) as client:
        paid = await client.enqueue("pay", {"card": SECRET}, queue="cards")
        raw = await client.enqueue("pay", SECRET.encode())
        tasks = {task.id: task for task in await client.dequeue("pay", batch_size=2)}
        assert qo.decode(tasks[paid.id].payload) == {"card": SECRET}
        assert tasks[raw.id].payload == SECRET.encode()
        await client.ack(tasks[paid.id], {"charged": SECRET})
        await client.nack(tasks[raw.id], f"no such card: {SECRET}")
        assert await paid.result() == {"charged": SECRET}
        error = (await raw.refresh()).error
        assert error is not None and error.startswith("no such card")
        assert [event.error for event in await client.history(raw.id)][-1] == error
    stored = bytes_of(tmp_path)
    assert SECRET.encode() not in stored
    assert b"cards" in stored, "queues, types and times stay readable"


async def test_a_task_is_read_with_any_of_the_keys_and_sealed_with_the_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/qo.db"
    async with qo.connect(url, codec=Encrypted([OLD_KEY])) as client:
        old = await client.enqueue("pay", 1)
    async with qo.connect(url, codec=Encrypted([KEY, OLD_KEY])) as client:
        new = await client.enqueue("pay", 2)
        assert [qo.decode(task.payload) for task in await client.list()] == [2, 1]
    async with qo.connect(url, codec=Encrypted([KEY])) as client:
        assert qo.decode((await client.get(new.id)).payload) == 2  # type: ignore[union-attr]
        sealed = await client.get(old.id)
        assert sealed is not None
        with pytest.raises(qo.EncryptedValue, match="does not have; add it to codec="):
            qo.decode(sealed.payload)


async def test_without_the_key_values_are_shown_as_encrypted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/qo.db"
    async with qo.connect(url, codec=Encrypted([KEY])) as client:
        handle = await client.enqueue("pay", {"card": SECRET})
    async with qo.connect(url) as client:
        (task,) = await client.list()
        shown = to_json(task.payload)
        assert list(shown) == ["$encrypted"] and len(shown["$encrypted"]) == 8
        with pytest.raises(qo.InvalidTask, match="is encrypted with key"):
            from_json(shown)
        assert task.id == handle.id


async def test_without_the_key_errors_and_logs_are_shown_as_encrypted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/qo.db"
    async with qo.connect(url, codec=Encrypted([KEY])) as client:
        handle = await client.enqueue("pay", {"card": SECRET}, max_retries=0)
        (task,) = await client.dequeue("pay")
        assert await client.engine.apply([fail(task, f"no such card: {SECRET}", log=f"paying {SECRET}")]) == [True]
    shown = await asyncio.to_thread(_responses, url, f"/api/v1/tasks/{handle.id}", f"/api/v1/tasks/{handle.id}/history")
    commands: tuple[list[str], ...] = (["status"], ["logs"], ["history"], ["wait"])
    commands += tuple(["--json", *command] for command in commands)
    shown += [await asyncio.to_thread(_printed, url, *command, handle.id) for command in commands]
    for text in shown:
        assert "encrypted with key" in text and "encrypted: " not in text, text
    assert shown_text("encrypted: by hand") == "encrypted: by hand"


def _printed(url: str, *args: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QO_")} | {"QO_URL": url}
    command = [sys.executable, "-m", "qo", *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def _responses(url: str, *paths: str) -> list[str]:
    with served(open_engine(url)) as api:
        return [api.client.get(path).text for path in paths]


async def test_a_value_cannot_be_moved_to_another_task_or_field() -> None:
    inner = open_engine("memory://")
    keys = Encrypted([KEY])
    async with Client(inner) as plain:
        sealed = keys.seal(b'"mine"', OTHER_ID, "payload")
        moved = await plain.submit(plain.new_task("t", sealed))
        async with Client(keys.wrap(inner)) as client:
            (task,) = await client.engine.get([moved.id])
            assert task is not None and task.payload == sealed
    assert keys.open(sealed, OTHER_ID, "result") is None
    assert keys.open(sealed, OTHER_ID, "payload") == b'"mine"'
    assert keys.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), OTHER_ID, "payload") is None
    assert keys.open(SEALED, OTHER_ID, "payload") is None


async def test_a_worker_without_the_key_hands_tasks_back_and_runs_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/qo.db"
    async with qo.connect(url, codec=Encrypted([OTHER_KEY])) as client:
        sealed = await client.enqueue("double", {"number": 1})
    registry, seen = Registry(), list[int]()

    def double(number: int) -> int:
        seen.append(number)
        return 2 * number

    registry.add(make_handler(double, type="double", options=HandlerOptions()))
    async with qo.connect(url, codec=Encrypted([KEY])) as client:
        plain = await client.enqueue("double", {"number": 2})
        await Worker(client, registry, WorkerSettings(drain=True)).run()
        assert await plain.result() == 4 and seen == [2]
        task = await client.get(sealed.id)
        assert task is not None and (task.status, task.failures) == (Status.PENDING, 0)
        assert task.available_at > await client.engine.now() + 30, "it is not claimed again at once"
        assert f"handing task {sealed.id} (double) back: " in caplog.text
    async with qo.connect(url) as client:  # no keys at all
        task = await client.get(plain.id)
        assert task is not None and to_json(task.result or b"").keys() == {"$encrypted"}


async def test_keys_windows_and_repeats_work_as_without_encryption() -> None:
    clock = ManualClock()
    async with Client(Encrypted([KEY]).wrap(open_engine("memory://", clock=clock)), clock=clock) as client:
        first = await client.enqueue("t", {"a": 1}, idempotency_key="k")
        assert (await client.enqueue("t", {"a": 1}, idempotency_key="k")).id == first.id
        with pytest.raises(qo.KeyReused):
            await client.enqueue("t", {"a": 2}, idempotency_key="k")
        (task,) = await client.dequeue("t")
        await client.ack(task)
        clock.advance(90_000)
        again = await client.enqueue("t", {"a": 3}, idempotency_key="k")
        assert again.id != first.id
        assert qo.decode((await again.refresh()).payload) == {"a": 3}
        assert [task.id for task in await client.list(Filter(statuses=(Status.PENDING,)))] == [again.id]


async def test_a_long_error_fits_after_encryption() -> None:
    async with Client(Encrypted([KEY]).wrap(open_engine("memory://"))) as client:
        handle = await client.enqueue("t", max_retries=0)
        (task,) = await client.dequeue("t")
        await client.nack(task, "begin " + "é" * ERROR_LIMIT)
        error = (await handle.refresh()).error
        assert error is not None and error.startswith("begin ") and "(cut)" in error
        (stored,) = await client.engine.engine.get([handle.id])  # type: ignore[attr-defined]
        assert len(stored.error) <= ERROR_LIMIT


async def test_the_log_of_an_attempt_is_encrypted_too() -> None:
    inner = open_engine("memory://")
    async with Client(Encrypted([KEY]).wrap(inner)) as client:
        handle = await client.enqueue("t")
        (task,) = await client.dequeue("t")
        lines = "".join(f"line {number} {SECRET}\n" for number in range(1000))
        assert await client.engine.apply([complete(task, log=lines)]) == [True]
        (kept,) = [event.log for event in await client.history(handle.id) if event.log is not None]
        assert "earlier lines not kept" in kept.split("\n")[0] and kept.endswith(f"line 999 {SECRET}\n")
        (stored,) = [event.log for event in await inner.history(handle.id) if event.log is not None]
        assert SECRET not in stored and len(stored) <= LOG_LIMIT


async def test_a_sealed_log_is_not_sealed_again_by_a_server() -> None:
    inner = open_engine("memory://")
    keys = Encrypted([KEY])
    async with Client(keys.wrap(keys.wrap(inner))) as client:  # a worker with keys, and a server with keys
        handle = await client.enqueue("t")
        (task,) = await client.dequeue("t")
        assert await client.engine.apply([complete(task, log="a line of the log\n" * 800)]) == [True]
        (kept,) = [event.log for event in await client.history(handle.id) if event.log is not None]
        assert kept.count("earlier lines not kept") == 1 and kept.endswith("of the log\n")


@pytest.mark.parametrize("earlier", ["", "(1 earlier line not kept)\n", "(1,234 earlier lines not kept)\n"])
async def test_the_number_of_dropped_lines_of_an_encrypted_log_is_right(earlier: str) -> None:
    async with Client(Encrypted([KEY]).wrap(open_engine("memory://"))) as client:
        handle = await client.enqueue("t")
        (task,) = await client.dequeue("t")
        lines = [f"{number:03} {'é' * 48}" for number in range(150)]  # 15 kB, which a plain store keeps
        assert await client.engine.apply([complete(task, log=earlier + "\n".join(lines))]) == [True]
        (log,) = [event.log for event in await client.history(handle.id) if event.log is not None]
        notice, *kept = log.split("\n")
        before = int(earlier.split(" ", maxsplit=1)[0][1:].replace(",", "")) if earlier else 0
        assert notice == f"({before + 150 - len(kept):,} earlier lines not kept)"
        assert 100 < len(kept) < 150 and kept == lines[-len(kept) :]


async def test_the_payload_of_a_missing_task_is_not_sent() -> None:
    engine = Encrypted([KEY]).wrap(open_engine("memory://"))
    new = NewTask(id=OTHER_ID, queue="q", type="t", payload=b'"plain"', idempotency_key="k")
    assert await engine.apply([amend(OTHER_ID, new)]) == [False]


@pytest.mark.parametrize("keys", [[], ["short"], [b"x" * 31], [None], "A" * 44, ["ä" * 44]])
def test_bad_keys_are_refused_without_showing_them(keys: list[str]) -> None:
    with pytest.raises(qo.InvalidSetting, match=r"key") as refused:
        Encrypted(keys)
    assert "short" not in str(refused.value)
    assert KEY not in repr(Encrypted([KEY]))


def test_the_command_line_reads_keys_from_the_environment(tmp_path: Path) -> None:
    environment = os.environ | {"QO_URL": f"sqlite:///{tmp_path}/qo.db"}

    def run(*args: str, keys: str = "") -> str:
        command = [sys.executable, "-m", "qo", *args]
        ended = subprocess.run(
            command, env=environment | {"QO_ENCRYPTION_KEYS": keys}, capture_output=True, text=True, check=False
        )
        return ended.stdout + ended.stderr

    key = run("encryption-key").strip()
    run("submit", "--type", "pay", "--input", json.dumps({"card": SECRET}), keys=f"{key},{OLD_KEY}")
    assert SECRET in run("list", "--json", keys=key)
    hidden = run("list", "--json")
    assert SECRET not in hidden and "$encrypted" in hidden
    assert "a key is 32 bytes" in run("list", keys="wrong")


def test_an_app_encrypts_in_test_mode_too() -> None:
    app = qo.App("sqlite:////nowhere/qo.db", codec=Encrypted([KEY]))

    @app.task
    def pay(card: str) -> str:
        return card[-4:]

    with app.test_mode() as t:
        pay.enqueue(SECRET)
        t.assert_enqueued(pay, card=SECRET)
        assert t.drain()[0].result == "1111"


async def test_the_arguments_of_a_schedule_are_sealed_and_only_a_scheduler_with_the_key_submits_them() -> None:
    clock = ManualClock()
    inner = open_engine("memory://", clock=clock)
    with_key, without = Client(Encrypted([KEY]).wrap(inner), clock=clock), Client(inner, clock=clock)
    await with_key.schedules.add("pay", task="pay", kwargs={"card": SECRET}, every=60)
    note = await inner.read_note("schedules/pay")
    assert note is not None and SECRET.encode() not in note.data
    assert SEALED in (await without.schedules.get("pay")).schedule.task.payload
    assert SECRET not in str(document_of(await without.schedules.get("pay")))
    await without.schedules.pause("pay")
    await without.schedules.resume("pay")
    clock.advance(61.0)
    await scheduler(without, clock).check()
    by_hand = await without.schedules.run("pay")
    assert await inner.find(Filter(), limit=9) == []
    clock.advance(5.0)
    for _ in range(2):
        await scheduler(with_key, clock).check()
    sealed, opened = await inner.find(Filter(), limit=9), await with_key.list()
    assert len(sealed) == 2 and by_hand in {task.id for task in sealed}
    assert all(task.payload.startswith(SEALED) for task in sealed)
    assert [qo.decode(task.payload) for task in opened] == [{"card": SECRET}] * 2


def test_something_else_than_keys_is_refused_as_a_codec() -> None:
    wrong: Any = "secret"
    for make in (qo.App, qo.connect, qo.sync.connect):
        with pytest.raises(qo.InvalidSetting, match=r"codec: 'secret' is not a qo\.Encrypted"):
            make("memory://", codec=wrong)
