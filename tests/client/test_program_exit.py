"""Tasks that a program submits while it exits are stored, or the call raises an error that says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qo
from tests.servers.process import ROOT

PROGRAM = """
import atexit, threading
import qo

app = qo.App("{url}")

@app.task
def greet() -> None: ...

def submit():
    try:
        greet.enqueue()
        print("stored", flush=True)
    except qo.QoError as error:
        print("refused", "program is exiting" in str(error), flush=True)

{body}
"""
AT_EXIT = "atexit.register(submit)"
IN_A_THREAD = "def late():\n    threading.main_thread().join()\n    submit()\nthreading.Thread(target=late).start()"


@pytest.mark.parametrize("store", ["sqlite:///qo.db", "file://{folder}/bucket"])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("late", [AT_EXIT, IN_A_THREAD], ids=["atexit", "thread"])
def test_a_task_submitted_while_the_program_exits_is_stored_or_refused(
    store: str, is_open: bool, late: str, tmp_path: Path
) -> None:
    url = store.format(folder=tmp_path)
    body = f"submit()\n{late}" if is_open else late
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(url=url, body=body)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = result.stdout.splitlines()
    assert len(said) == 1 + is_open, result.stderr
    assert set(said) <= {"stored", "refused True"}, result.stderr
    assert "never awaited" not in result.stderr
    stored = said.count("stored")
    if stored:
        with qo.sync.connect(url.replace("///qo.db", f"///{tmp_path}/qo.db")) as client:
            assert client.stats()["pending"] == stored
