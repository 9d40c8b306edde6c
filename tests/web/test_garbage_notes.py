"""One note that nobody can read, however it came into the store: every page and figure goes on without it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import apsw
import msgspec
import pytest

from qo.buckets.folder.files import new_version, write_file
from qo.client import Client
from qo.clock import system_clock
from qo.damage import QUARANTINE
from qo.engines import open_engine
from qo.model import ANY
from qo.notes import Controls, KnownTypes, Leader, WorkerNote
from qo.stats.rows import StatsDocument
from tests.web.serving import in_process

PAGES = (
    "/api/v1/dashboard/overview",
    "/api/v1/queue/stats",
    "/metrics",
    "/api/v1/workers",
    "/api/v1/dashboard/workers",
    "/api/v1/controls",
    "/readyz",
)
HOUR = f"{datetime.fromtimestamp(system_clock(), UTC):%Y-%m-%dT%H}"
NAMES = ("control", "types", "monitor", "workers/w", f"stats/{HOUR}/p", f"stats/{HOUR}/merged")
DEEP = b"[" * 5_000 + b"]" * 5_000


async def check_pages(client: Client, about: object) -> None:
    async with in_process(client) as http:
        answers = {path: (await http.get(path)).status_code for path in PAGES}
    assert set(answers.values()) == {200}, f"{about}: {answers}"


@pytest.mark.parametrize("shift", range(11))
async def test_notes_of_any_content(shift: int) -> None:
    """All notes are garbage at once, each another; after all shifts each has been every kind."""
    now = system_clock()
    worker = {"worker_id": "w", "started_at": now, "last_heartbeat": now, "capacity": 2**64 - 1}
    counts = {"completed": 2**64 - 1, "failed": {"\x00": -1}, "run": [1e308, {"999": 1, "-7": 2**64 - 1}]}
    stats = {"intervals": [[int(now) // 60 * 60, 60, [["\x00\n", "high", counts]]]]}
    controls = {"rate_limits": {"\x00": -1e308}, "draining": ["\x00"]}
    garbage = [b"", b"\xff", b"{", b"null", b"[]", b"{}", DEEP, b'{"a":' + DEEP + b"}"]
    garbage += [json.dumps(each).encode() for each in (worker, stats, controls)]
    client = Client(open_engine("memory://"))
    kinds = {name: garbage[(number + shift) % 11] for number, name in enumerate(NAMES)}
    for name, data in kinds.items():
        await client.engine.write_note(name, data, expected=ANY)
    await check_pages(client, {name: data[:60] for name, data in kinds.items()})


@pytest.mark.parametrize("number", range(6))
async def test_one_bad_note_hides_no_other(number: int) -> None:
    now, bad = system_clock(), NAMES[number]
    documents = (
        Controls(paused=True),
        KnownTypes(types=frozenset({"t"})),
        Leader(holder="m"),
        WorkerNote(worker_id="w", started_at=now, last_heartbeat=now, capacity=1),
        StatsDocument(intervals=[]),
        StatsDocument(intervals=[]),
    )
    client = Client(open_engine("memory://"))
    for name, document in zip(NAMES, documents, strict=True):
        data = DEEP if name == bad else msgspec.json.encode(document)
        await client.engine.write_note(name, data, expected=ANY)
    await check_pages(client, bad)
    async with in_process(client) as http:
        workers = (await http.get("/api/v1/workers")).json()["workers"]
        controls = (await http.get("/api/v1/controls")).json()
    assert [worker["worker_id"] for worker in workers] == ([] if bad == "workers/w" else ["w"])
    assert controls["paused"]["all"] == (bad != "control")


async def _filled(url: str) -> None:
    async with Client(open_engine(url)) as client:
        await client.enqueue("t", 1)
        for name in NAMES:
            await client.engine.write_note(name, b'{"a": 1}', expected=ANY)


async def test_rows_of_sqlite_that_hold_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/qo.db"
    await _filled(url)
    with apsw.Connection(f"{tmp_path}/qo.db") as db:
        db.execute("UPDATE notes SET data = CAST(x'ff' AS TEXT)")
    await check_pages(Client(open_engine(url)), "text that is not UTF-8")


SPOILING: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _content: b"",
    "foreign": lambda _content: b'{"hello": 1}',
    "a flipped bit": lambda content: content[:-2] + bytes([content[-2] ^ 1]) + content[-1:],
    "deep": lambda _content: DEEP,
}


def _spoil(folder: Path, how: Callable[[bytes], bytes]) -> None:
    for top in ("notes", "workers", "tasks"):
        for path in (folder / top).rglob("*"):
            if path.is_file():
                path.write_bytes(how(path.read_bytes()))


@pytest.mark.parametrize("kind", SPOILING)
async def test_files_of_a_folder(tmp_path: Path, kind: str) -> None:
    url = f"file://{tmp_path}?layout=tasks"
    await _filled(url)
    _spoil(tmp_path, SPOILING[kind])
    await check_pages(Client(open_engine(url)), kind)
    async with Client(open_engine(url)) as client:
        assert (await client.controls.pause()).paused
        assert (await client.controls.read()).paused
        assert [note.name for note in await client.engine.notes(QUARANTINE + "control")] == [QUARANTINE + "control"]


ENTRIES: list[object] = [5, None, {}, {"name": 5}, {"name": "workers/q", "data": "!!", "version": "1"}, [[]]]


def _add_note(folder: Path, garbage: object) -> None:
    (path,) = [path for path in folder.rglob("*") if path.is_file() and b'"format"' in path.read_bytes()]
    document = json.loads(path.read_bytes().partition(b"\n")[2])
    document["notes"].append(garbage)
    path.unlink()
    write_file(path, json.dumps(document).encode(), new_version(7), 1.0, 0o600)


@pytest.mark.parametrize("garbage", ENTRIES)
async def test_entries_of_the_object_that_holds_everything(tmp_path: Path, garbage: object) -> None:
    url = f"file://{tmp_path}?layout=one"
    await _filled(url)
    _add_note(tmp_path, garbage)
    await check_pages(Client(open_engine(url)), garbage)
    async with Client(open_engine(url)) as client:
        await client.enqueue("t", 2)
        (kept,) = await client.engine.notes(f"{QUARANTINE}notes/")
        assert json.loads(kept.data) == garbage
        assert len(await client.list()) == 2
