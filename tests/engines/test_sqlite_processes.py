"""Real processes on one file, some of which are killed."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import apsw

from qo.engines import examine
from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite.file import connect, prepare
from qo.sqlite_tables.header import APPLICATION_ID
from qo.testing.samples import claim_request, new
from tests.conditions import TIMEOUT
from tests.engines.busy_process import start
from tests.engines.killing import check, ended, kill_again_and_again, kills

KILLS = kills(15)


async def test_nothing_acknowledged_is_lost_when_processes_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    url = f"sqlite:///{path}"
    told = await kill_again_and_again(url, tmp_path, KILLS)
    assert len(told.added) >= 3 * KILLS and len(told.completed) > KILLS, (len(told.added), len(told.completed))
    await check(url, told)
    db = apsw.Connection(str(path))
    assert db.execute("PRAGMA integrity_check").get == "ok"
    db.close()
    assert [finding for finding in await examine(url) if finding.ok is False] == []
    engine = SqliteEngine(path)
    await engine.open()
    assert len(await engine.add([new()])) == 1
    await engine.close()


def test_many_processes_may_create_the_file_concurrently(tmp_path: Path) -> None:
    for turn in range(2):
        path = tmp_path / f"{turn}.db"
        logs = [tmp_path / f"{turn}-{n}.log" for n in range(8)]
        processes = [start(f"sqlite:///{path}", log, rounds=2) for log in logs]
        assert [ended(process) for process in processes] == [0] * 8
        db = apsw.Connection(str(path))
        sql = "SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM unindexed)"
        assert db.execute(sql).get == 8 * 2 * 3
        assert db.execute("PRAGMA journal_mode").get == "wal"
        db.close()


def test_a_process_that_waited_for_another_to_create_the_file_uses_it(tmp_path: Path) -> None:
    path, waiting = tmp_path / "qo.db", threading.Event()
    first, second = connect(path), connect(path)

    def patient(_: int) -> bool:
        waiting.set()
        return True

    second.set_busy_handler(patient)
    first.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(prepare, second, path)
        assert waiting.wait(TIMEOUT)
        first.execute(files("qo.sqlite_tables").joinpath("schema", "0001.sql").read_text("utf-8"))
        first.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1; COMMIT")
        late.result(10)
    for db in (first, second):
        prepare(db, path)
        assert db.execute("PRAGMA journal_mode").get == "wal"
        db.close()


async def test_waiting_ends_when_another_process_adds(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    waiting = asyncio.create_task(engine.wait(claim_request(), 60))
    process = start(f"sqlite:///{tmp_path}/qo.db", tmp_path / "log", rounds=40)
    await asyncio.wait_for(waiting, 30)
    assert await asyncio.to_thread(ended, process) == 0
    await engine.close()
