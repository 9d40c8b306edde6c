"""Real processes on one file, and what is left when one is killed."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import apsw

from qo.engines import examine
from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite.file import connect, prepare
from qo.sqlite_tables.header import APPLICATION_ID
from qo.testing.samples import new, want

SCRIPT = Path(__file__).with_name("sqlite_worker.py")
SOURCE = Path(__file__).parents[2] / "src"
KILLS = 50
ENDLESS = 10**9


def start(path: Path, log: Path, rounds: int = ENDLESS) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.Popen([sys.executable, str(SCRIPT), str(path), str(log), str(rounds)], env=environment)


def until_open(log: Path, process: subprocess.Popen[bytes]) -> None:
    while not (log.exists() and log.stat().st_size):
        assert process.poll() is None, "a worker ended by itself"
        time.sleep(0.005)


async def test_nothing_acknowledged_is_lost_when_processes_are_killed(tmp_path: Path) -> None:
    """Four processes at work; again and again one is killed at a random moment and another takes its place."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    dice, path = random.Random(seed), tmp_path / "qo.db"
    logs = [tmp_path / f"{n}.log" for n in range(KILLS + 4)]
    workers = [(start(path, log), log) for log in logs[:4]]
    for process, log in workers:
        until_open(log, process)
    for log in logs[4:]:
        workers.append((start(path, log), log))  # it starts up while the others work
        await asyncio.sleep(dice.uniform(0.0, 0.06))
        victim, its_log = workers.pop(dice.randrange(4))
        until_open(its_log, victim)
        victim.send_signal(signal.SIGKILL)
        assert victim.wait(10) == -signal.SIGKILL, "a worker ended by itself"
    for process, log in workers:
        until_open(log, process)
        process.kill()
        process.wait(10)
    check(path, logs)
    assert [finding for finding in await examine(f"sqlite:///{path}") if finding.ok is False] == []
    engine = SqliteEngine(path)
    await engine.open()
    assert len(await engine.add([new()])) == 1
    await engine.close()


def check(path: Path, logs: list[Path]) -> None:
    db = apsw.Connection(str(path))
    stored = dict(db.execute("SELECT id, status FROM tasks"))
    events = defaultdict[str, list[tuple[str, int]]](list)
    for task_id, status, attempt in db.execute(
        "SELECT id, e.status, e.attempt FROM events e JOIN tasks USING (n) ORDER BY n, e.version"
    ):
        events[task_id].append((status, attempt))
    lines = [line.split() for log in logs for line in log.read_text().splitlines()]
    added = [line[1] for line in lines if line[0] == "added"]
    completed = [(line[1], int(line[2])) for line in lines if line[0] == "completed"]
    assert len(added) > 500 and len(completed) > 300, (len(added), len(completed))
    assert not set(added) - stored.keys(), "an acknowledged task is lost"
    assert not [line for line in completed if stored[line[0]] != "completed"], "an acknowledged completion is lost"
    assert not [line for line in completed if ("completed", line[1]) not in events[line[0]]]
    assert len(completed) == len({task_id for task_id, _ in completed}), "a task was completed twice"
    for history in events.values():
        claims = [attempt for status, attempt in history if status == "running"]
        assert claims == list(range(1, len(claims) + 1)), history
        ends = [attempt for status, attempt in history if status == "completed"]
        assert len(ends) == len(set(ends)), history
    assert db.execute("PRAGMA integrity_check").get == "ok"
    db.close()


def test_many_processes_may_create_the_file_at_once(tmp_path: Path) -> None:
    for turn in range(2):
        path = tmp_path / f"{turn}.db"
        logs = [tmp_path / f"{turn}-{n}.log" for n in range(8)]
        processes = [start(path, log, rounds=2) for log in logs]
        assert [process.wait(60) for process in processes] == [0] * 8
        db = apsw.Connection(str(path))
        assert db.execute("SELECT count(*) FROM tasks").get == 8 * 2 * 3
        assert db.execute("PRAGMA journal_mode").get == "wal"
        db.close()


def test_whoever_waited_for_the_first_to_create_the_file_finds_it_made(tmp_path: Path) -> None:
    path, waiting = tmp_path / "qo.db", threading.Event()
    first, second = connect(path), connect(path)

    def patient(_: int) -> bool:
        waiting.set()
        time.sleep(0.001)
        return True

    second.set_busy_handler(patient)
    first.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(prepare, second, path)
        assert waiting.wait(10)
        first.execute(files("qo.sqlite_tables.schema").joinpath("0001.sql").read_text("utf-8"))
        first.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1; COMMIT")
        late.result(10)
    for db in (first, second):
        prepare(db, path)
        assert db.execute("PRAGMA journal_mode").get == "wal"
        db.close()


async def test_waiting_ends_when_another_process_adds(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    waiting = asyncio.create_task(engine.wait(want(), 60))
    process = start(tmp_path / "qo.db", tmp_path / "log", rounds=40)
    await asyncio.wait_for(waiting, 30)
    assert await asyncio.to_thread(process.wait, 30) == 0
    await engine.close()
