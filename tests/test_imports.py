"""What is imported when: `import qo`, help texts and the supervisor of worker processes must be quick and small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qo
from qo.cli.group import COMMANDS
from tests.servers.process import ROOT

HEAVY = {"asyncio", "rich", "msgspec", "click", "multiprocessing", "apsw"}  # each takes 5 to 60 ms
OF_A_WORKER = {"qo.client", "qo.app", "qo.engines", "qo.worker.worker", "qo.monitor.monitor", "apsw", "rich"}


# What the extras in pyproject.toml install. The program below makes their import fail, as without the extras.
EXTRAS = [
    *("aiohttp", "authlib", "boto3", "cryptography", "django", "httptools", "httpx2", "joserfc", "litestar", "obstore"),
    *("opentelemetry", "prometheus_client", "psycopg", "redis", "uvicorn", "uvloop"),
]
WITHOUT_EXTRAS = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); from qo.cli import main; main(sys.argv[1:])"


def run(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QO_")}
    environment |= {"PYTHONPATH": f"{ROOT / 'src'}:{cwd}"}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, check=True, capture_output=True, text=True, timeout=60
    )


def imported(*words: str, cwd: Path) -> set[str]:
    """The modules that one process imported: `-X importtime` is not passed on to its children."""
    lines = run("-X", "importtime", *words, cwd=cwd).stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def test_importing_qo_imports_no_worker_and_no_library(tmp_path: Path) -> None:
    program = "import qo, sys, json, threading; print(json.dumps([*sys.modules, threading.active_count()]))"
    *modules, threads = json.loads(run("-c", program, cwd=tmp_path).stdout)
    assert {module for module in modules if module.startswith("qo")} == {
        "qo", "qo.errors", "qo.lazy_names", "qo.version",
    }  # fmt: skip
    assert not HEAVY & set(modules)
    assert threads == 1


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_need_no_store_and_no_worker(option: str, tmp_path: Path) -> None:
    modules = imported("-m", "qo", option, cwd=tmp_path)
    assert "qo.cli.group" in modules
    assert not (OF_A_WORKER | {"asyncio", "qo.worker"}) & modules


def test_the_supervisor_of_worker_processes_imports_no_worker(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import qo\napp = qo.App('sqlite:///queue.db')\n@app.task\ndef f(): ...\n")
    modules = imported("-m", "qo", "worker", "program", "--drain", cwd=tmp_path)
    assert "qo.supervisor.supervisor" in modules
    assert not (OF_A_WORKER | {"program", "multiprocessing"}) & modules
    assert (tmp_path / "queue.db").exists()  # its child did the work


def test_every_name_of_qo_can_be_imported_and_is_listed() -> None:
    assert {name for name in qo.__all__ if getattr(qo, name, None) is None} == set()
    assert set(qo.__all__) <= set(dir(qo))
    assert callable(qo.tq)  # no module of that name hides it
    with pytest.raises(AttributeError, match="module 'qo' has no attribute 'Nonsense'"):
        _ = qo.Nonsense  # type: ignore[attr-defined]


def test_every_help_page_needs_no_extra(tmp_path: Path) -> None:
    pages = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"
        "from click.testing import CliRunner\nfrom qo.cli import main\n"
        "for name in sys.argv[1:]:\n"
        "    page = CliRunner().invoke(main, [name, '--help'])\n"
        "    assert page.exit_code == 0, (name, page.output, page.stderr)\n"
        "    assert page.output.startswith('Usage: '), name\n"
    )
    run("-c", pages, *COMMANDS, cwd=tmp_path)


@pytest.mark.parametrize(
    "command", ["migrate", "migrate --check", "token create --name me --scopes read", "session list"]
)
def test_a_file_is_set_up_without_the_packages_of_the_server(command: str, tmp_path: Path) -> None:
    run("-c", WITHOUT_EXTRAS, "migrate", cwd=tmp_path)
    assert run("-c", WITHOUT_EXTRAS, *command.split(), cwd=tmp_path).stdout
