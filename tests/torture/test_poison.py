"""A handler can hurt only itself: healthy tasks beside it complete, and none of them is charged a failure."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qo
from qo import sync
from tests.cli.conftest import until
from tests.torture import poison_program

QUICK = ("--lease", "30", "--poll", "0.2", "--check-interval", "1", "--grace", "5", "--concurrency", "4")
SHORT = ("aregex", "closes_files", "segfaults", "cancels_all", "exits_in_callback")
HERE = Path(__file__).parent


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'qo.db'}"


@pytest.fixture
def worker(tmp_path: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "qo", "worker", "poison_program:app", "--url", url, *QUICK],
            cwd=HERE,
            env=os.environ | {"PYTHONPATH": str(Path(qo.__file__).parents[1])},
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    yield process
    process.terminate()
    try:
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def test_healthy_tasks_complete_beside_every_kind_of_poison(
    url: str, worker: subprocess.Popen[bytes], tmp_path: Path, scale: int, seed: int
) -> None:
    chance = random.Random(seed)
    kinds = list(poison_program.KINDS) if scale > 1 else [kind for kind in poison_program.KINDS if kind in SHORT]
    chance.shuffle(kinds)
    with sync.connect(url) as client:
        good, bad = [], []
        for kind in kinds:
            good += [
                client.enqueue(chance.choice(("healthy", "ahealthy")), {"n": n}, timeout=60, max_retries=0)
                for n in range(5)
            ]
            bad.append(client.enqueue(kind, {}, timeout=1, max_retries=1, retry=poison_program.quick))

        def ended() -> Any:
            return all(task.status() in ("completed", "failed") for task in (*good, *bad))

        until(ended, patience=60.0 + 15.0 * len(kinds))
        assert worker.poll() is None
        healthy = [task.refresh() for task in good]
        said = (tmp_path / "log").read_text()
        assert {(task.status, task.failures) for task in healthy} == {("completed", 0)}, said
        assert {one.status() for one in bad} == {"failed"}, said
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, said
