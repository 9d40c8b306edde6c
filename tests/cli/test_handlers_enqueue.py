"""A handler that enqueues reaches the store its worker serves, wherever the handler runs."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

from qo import connect
from qo.model import expire
from tests.cli.conftest import SOURCE

QUICK = ("--lease", "1", "--heartbeat", "0.2", "--poll", "0.1", "--check-interval", "0.2", "--expiry-grace", "0.1")

PROGRAM = """
import ctypes, os
from pathlib import Path
import qo
from shared import app, other, twin, tell

HERE = Path(__file__).parent
quick = qo.RetryPolicy(initial=0.05, jitter=0.0)

@app.task(executor="thread")
def from_thread() -> None:
    tell.enqueue(said="thread")

@app.task
async def from_loop() -> None:
    await tell.aenqueue(said="loop")

@app.task(executor="process")
def from_process() -> None:
    tell.enqueue(said="process")

@app.task(executor="process")
async def from_async_process() -> None:
    await tell.aenqueue(said="async process")

@app.task(retry=quick)
def from_suspect() -> None:
    if not (HERE / "died").exists():
        (HERE / "died").touch()
        ctypes.CDLL(None)._exit(1)
    tell.enqueue(said="suspect")

@app.task(executor="thread")
def from_another_object() -> None:
    twin.enqueue("tell", {"said": "twin"})

@app.task(executor="thread")
def from_another_folder() -> None:
    (HERE / "moved").mkdir(exist_ok=True)
    os.chdir(HERE / "moved")
    other.enqueue("elsewhere", {})
    twin.enqueue("tell", {"said": "moved"})

"""

SHARED = """
import os
import qo

app = qo.App("sqlite:///own.db")
twin = qo.App("sqlite:///own.db")
other = qo.App("sqlite:///other.db")

@app.task
def tell(said: str) -> str:
    return said
"""


HANDLERS = {
    "from_thread": "thread",
    "from_loop": "loop",
    "from_process": "process",
    "from_async_process": "async process",
    "from_suspect": "suspect",
    "from_another_object": "twin",
    "from_another_folder": "moved",
}


def told(call: Any) -> set[str]:
    return {task["result"] for task in call.json("list", "--type", "tell")["tasks"]}


def test_a_handler_enqueues_where_its_worker_serves(call: Any, processes: Any, eventually: Any) -> None:
    (processes.folder / "pkg").mkdir()
    (processes.folder / "shared.py").write_text(SHARED)
    (processes.folder / "pkg" / "work.py").write_text(PROGRAM)
    for kind in HANDLERS:
        call.submit(kind)
    worker = processes.start("worker", "pkg.work:app", *QUICK)
    eventually(lambda: told(call) == set(HANDLERS.values()))
    assert {path.name for path in processes.folder.rglob("*.db")} == {"qo.db", "other.db"}
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert (processes.folder / "other.db").exists()


TQ = """
import sys
from qo import tq

def first(payload) -> None:
    tq("second").add(payload)

def second(payload) -> str:
    return payload

def serve() -> None:
    tq("first").set_worker(first)
    tq("second").set_worker(second)

if __name__ == "__main__":
    tq.init(sys.argv[1], poll_interval=0.05)
    serve()
    sys.stdin.read()
    tq.stop()
elif __name__ == "served":
    tq.init("sqlite:///own.db")
    serve()
"""


def second_results(call: Any) -> list[Any]:
    return [task["result"] for task in call.json("list", "--type", "second")["tasks"]]


def lose_first(call: Any) -> None:
    """Submit a task whose last attempt took its process with it, so that it runs in a child process."""
    call.submit("first", "--input", '"x"')

    async def lose(url: str) -> None:
        async with connect(url) as client:
            (task,) = await client.dequeue("first", lease=0.001)
            while not (await client.engine.apply([expire(task, random=0.0, grace=0.0)]))[0]:
                await asyncio.sleep(0)

    asyncio.run(lose(call.url))


def test_a_tq_handler_enqueues_where_its_worker_serves(call: Any, processes: Any, eventually: Any) -> None:
    (processes.folder / "served.py").write_text(TQ)
    lose_first(call)
    call.submit("first", "--input", '"y"')
    worker = processes.start("worker", "served:tq", *QUICK, "--lease", "60")
    eventually(lambda: sorted(map(str, second_results(call))) == ["x", "y"])
    assert [path.name for path in processes.folder.glob("*.db")] == ["qo.db"]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def test_a_tq_handler_in_a_child_process_enqueues_where_its_program_does(
    call: Any, processes: Any, eventually: Any
) -> None:
    (processes.folder / "main.py").write_text(TQ)
    elsewhere = processes.folder / "elsewhere"
    elsewhere.mkdir()
    lose_first(call)
    program = subprocess.Popen(
        [sys.executable, processes.folder / "main.py", call.url],
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
    )
    try:
        eventually(lambda: second_results(call) == ["x"])
        assert [path.name for path in processes.folder.rglob("*.db")] == ["qo.db"]
    finally:
        program.communicate(timeout=30)
    assert program.returncode == 0
