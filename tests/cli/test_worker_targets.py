"""What `qo worker` says about a target that it cannot load."""

import os
import subprocess
import sys
from typing import Any

from tests.cli.conftest import PROCESS_TIMEOUT, SOURCE

WRONG_TARGETS = {
    "missing_module": "there is no module 'missing_module'",
    "jobs:ap": "has no attribute 'ap'; did you mean jobs:app?",
    "jobs:nothing": "is not a qo.App but of type int",
    "jobs:empty": "has no tasks",
    "jobs.py": "did you mean jobs:app?",
    "./jobs.py": "did you mean jobs:app?",
    "leaves": "leaves cannot be imported: it calls sys.exit(3) (",
    "mistake": "did you mean 'max_retries'? ({folder}/mistake.py, line 3)",
    "crash": "cannot be imported: ZeroDivisionError",
    "imports": "cannot be imported: ModuleNotFoundError: No module named 'not_installed'",
}
LOAD = """
import sys
from qo.cli.supervised_worker import load_app
from qo.errors import InvalidSetting

for target, options in [*((name, {}) for name in sys.argv[1:]), ("jobs", {"shards": "0"})]:
    try:
        load_app(target, None, options)
        print("loaded")
    except InvalidSetting as error:
        print(error)
"""


def test_a_wrong_target_or_option_is_reported_in_one_sentence(processes: Any) -> None:
    """One process loads all of them, with the function that a worker calls."""
    (processes.folder / "crash.py").write_text("1 / 0")
    (processes.folder / "imports.py").write_text("import not_installed")
    (processes.folder / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (processes.folder / "mistake.py").write_text("import qo\napp = qo.App()\n@app.task(max_retry=3)\ndef f(): ...\n")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *WRONG_TARGETS],
        cwd=processes.folder,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT,
        check=True,
    )
    lines = done.stdout.splitlines()
    for line, said in zip(lines, [*WRONG_TARGETS.values(), "only for buckets and folders"], strict=True):
        assert said.format(folder=processes.folder) in line


def test_a_target_that_cannot_be_imported_ends_a_worker(processes: Any) -> None:
    (processes.folder / "crash.py").write_text("1 / 0")
    worker = processes.start("worker", "crash")
    assert worker.wait(PROCESS_TIMEOUT) == 2
    assert WRONG_TARGETS["crash"] in processes.log(worker) and "Traceback" not in processes.log(worker)


def test_a_fleet_with_a_wrong_target_gives_up(processes: Any) -> None:
    supervisor = processes.start("worker", "missing_module", "--processes", "2")
    assert supervisor.wait(PROCESS_TIMEOUT) == 2
    assert "there is no module 'missing_module'" in processes.log(supervisor)
