"""Each example is run as its docstring says: a worker in one process, the program in another."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.conditions import TIMEOUT, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MODULES = f"{EXAMPLES}{os.pathsep}{ROOT / 'src'}"


@contextmanager
def worker(folder: Path, name: str, *options: str) -> Iterator[Path]:
    """A worker of the example, which ends cleanly; yields the file with what its handlers print."""
    printed = folder / "printed.txt"
    with printed.open("w") as output, (folder / "worker.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "qo", "worker", f"{name}:app", *options],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": MODULES},
            stdout=output,
            stderr=log,
        )
    try:
        yield printed
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(TIMEOUT)
    assert code == 0, (folder / "worker.log").read_text()


def run(folder: Path, *command: str) -> str:
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": MODULES},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    log = folder / "worker.log"
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{log.read_text() if log.exists() else ''}"
    return done.stdout


def test_celery_with_beat(tmp_path: Path) -> None:
    with worker(tmp_path, "celery_beat") as printed:
        out = run(tmp_path, str(EXAMPLES / "celery_beat.py"))
        assert out.splitlines() == ["4 + 4 = 8", "the second one is pending", "2 + 2 = 4"]
        wait_until(lambda: printed.read_text().count("hello") >= 2)
    assert "Monday" not in printed.read_text()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """The address of a page with five words."""
    (tmp_path / "page.txt").write_text("one two three four five")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/page.txt"
        server.shutdown()


def test_rq_with_cron(tmp_path: Path, page: str) -> None:
    assert run(tmp_path, str(EXAMPLES / "rq_cron.py")).splitlines() == [
        "schedule clean-up every 1 s",
        "schedule newsletter 30 10 * * tue Europe/Paris",
    ]
    with worker(tmp_path, "rq_cron"):
        assert run(tmp_path, str(EXAMPLES / "rq_cron.py"), page).splitlines() == [
            f"{page} has 5 words",
            "the second job is cancelled",
        ]
        listing = ("-m", "qo", "--url", "sqlite:///rq-cron.db", "list", "--json", "--type", "clean_up")
        wait_until(lambda: "cleaned /tmp/uploads of files older than 30 days" in run(tmp_path, *listing))


def test_huey(tmp_path: Path) -> None:
    with worker(tmp_path, "huey_periodic") as printed:
        assert run(tmp_path, str(EXAMPLES / "huey_periodic.py")).splitlines() == [
            "1 + 2 = 3",
            "called directly: 3",
            "2 + 3 = 5",
            "fetched https://example.com/ with attempt 2",
        ]
        wait_until(lambda: printed.read_text().count("beep") >= 1)
    assert "backing up" not in printed.read_text()


def test_oban(tmp_path: Path) -> None:
    with worker(tmp_path, "oban_worker", "--queues", "events,default") as printed:
        assert run(tmp_path, str(EXAMPLES / "oban_worker.py")).splitlines() == [
            "submitted twice, stored once: True",
            "record 1 is in the business",
            "record 2 is in the queue",
            "record 3 is in the business",
            "given up after 1 attempt: there is no record -1",
        ]
        wait_until(lambda: "a report of 1 page\n" in printed.read_text())
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "oban_worker.py"))


def test_every_example_is_described_and_tested() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    described = (EXAMPLES / "README.md").read_text()
    tested = Path(__file__).read_text()
    assert programs
    assert [name for name in sorted(programs) if f"({name})" not in described or name not in tested] == []
