"""What the page about deployment says: units, manifests and images have options that exist, and probes that pass."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from qo.cli import main
from tests.conditions import wait_until
from tests.docs.commands import check_command
from tests.servers.process import free_port, free_ports, running

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
MARGIN = 15  # seconds that the page demands beyond the grace period of a worker


def files(language: str) -> dict[str, str]:
    """The blocks of a language, which name their files in their first lines."""
    found = re.findall(rf"^```{language}\n(# (\S+)\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return {name: text for text, name in found}


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


@pytest.mark.parametrize(("name", "text"), files("ini").items(), ids=lambda value: Path(value.split("\n")[0]).stem)
def test_a_unit_is_valid(name: str, text: str, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    unit.read_string(text)
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    check_command(words)
    assert service["KillMode"] == "mixed", "a worker process must not get the signal twice"
    if words[0] == "worker":
        assert int(service["TimeoutStopSec"]) >= seconds(option(words, "--grace")) + MARGIN
    if shutil.which("systemd-analyze"):
        path = tmp_path / Path(name).name
        path.write_text(text.replace(program, sys.executable).replace("User=myproject", "User=root"))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)  # noqa: PLW1510
        assert (done.returncode, done.stderr) == (0, "")


def test_the_services_of_compose_are_valid() -> None:
    services = yaml.safe_load(files("yaml")["compose.yaml"])["services"]
    ours = [service for service in services.values() if "build" in service]
    assert len(ours) == 3
    for service in ours:
        check_command(service["command"])
        assert service["environment"]["QO_URL"].startswith("postgresql://")
        assert all(name in services for name in service["depends_on"])
    worker = services["worker"]
    assert seconds(worker["stop_grace_period"]) >= seconds(option(worker["command"], "--grace")) + MARGIN


def image_command() -> list[str]:
    """The command of a container without arguments, with this Python's `qo`."""
    lines = dict(line.split(" ", 1) for line in files("dockerfile")["Dockerfile"].splitlines() if line)
    (entry,) = yaml.safe_load(lines["ENTRYPOINT"])
    assert (entry, lines["USER"].isdigit()) == ("qo", True)
    return [sys.executable, "-m", "qo", *yaml.safe_load(lines["CMD"])]


def pod_command() -> list[str]:
    """The command of the worker's pod, with a port that is free."""
    args = manifest("worker.yaml")["containers"][0]["args"]
    args[args.index("--metrics-port") + 1] = str(free_port())
    return [sys.executable, "-m", "qo", *args]


PROJECT = """
from pathlib import Path
from time import sleep

import qo

app = qo.App()


@app.task
def finish(path: str) -> None:
    Path(path).with_suffix(".begun").touch()
    while not Path(path).exists():
        sleep(0.01)
"""


@pytest.mark.parametrize("command", [image_command, pod_command])
def test_a_container_of_a_worker_finishes_its_task_after_sigterm(command: Any, tmp_path: Path) -> None:
    (tmp_path / "myproject").mkdir()
    (tmp_path / "myproject" / "tasks.py").write_text(PROJECT)
    environ = {"QO_URL": f"sqlite:///{tmp_path}/qo.db", "PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"}

    def run(*words: str) -> str:
        program = [sys.executable, "-m", "qo", *words]
        return subprocess.run(program, env=os.environ | environ, check=True, capture_output=True, text=True).stdout

    run(*manifest("worker.yaml")["initContainers"][0]["args"])  # migrate
    done = tmp_path / "finish"
    run("submit", "--type", "finish", "--input", json.dumps({"path": str(done)}))
    words: list[str] = command()
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(words, env=os.environ | environ, cwd=tmp_path, stdout=log, stderr=log)
    try:
        wait_until(done.with_suffix(".begun").exists)
        if "--metrics-port" in words:
            assert status(int(option(words, "--metrics-port")), "/metrics", "10.1.2.3:9100") == 200
        worker.send_signal(signal.SIGTERM)
        done.touch()
        assert worker.wait(30) == 0, (tmp_path / "log").read_text()
    finally:
        worker.kill()
        worker.wait()
    assert json.loads(run("--json", "stats"))["completed"] == 1


def manifest(name: str) -> Any:
    return next(iter(yaml.safe_load_all(files("yaml")[name])))["spec"]["template"]["spec"]


def test_a_pod_has_time_to_finish_its_tasks() -> None:
    pod = manifest("worker.yaml")
    (worker,), (migrate,) = pod["containers"], pod["initContainers"]
    check_command(worker["args"])
    check_command(migrate["args"])
    assert pod["terminationGracePeriodSeconds"] >= seconds(option(worker["args"], "--grace")) + MARGIN
    assert worker["ports"][0]["containerPort"] == int(option(worker["args"], "--metrics-port"))


def status(port: int, path: str, host: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return int(error.code)


def test_the_probes_of_a_pod_and_the_health_check_of_compose_pass(tmp_path: Path) -> None:
    (server,) = manifest("server.yaml")["containers"]
    url, (port,) = f"sqlite:///{tmp_path}/qo.db", free_ports(1)
    made = CliRunner().invoke(main, ["--url", url, "token", "create", "--name", "ops", "--scopes", "admin"])
    assert made.exit_code == 0, made.output
    command = [sys.executable, "-m", "qo", *server["args"], "--port", str(port)]
    environ = {"QO_URL": url, "PYTHONPATH": str(ROOT / "src")}
    with running(command, tmp_path, f"http://127.0.0.1:{port}/healthz", environ):
        for name in ("livenessProbe", "readinessProbe"):
            probe = server[name]["httpGet"]
            ((header, host),) = [tuple(each.values()) for each in probe["httpHeaders"]]
            assert (header, status(port, probe["path"], host)) == ("Host", 200)
            assert status(port, probe["path"], "10.1.2.3:8000") == 400  # what a kubelet sends by itself
        check = yaml.safe_load(files("yaml")["compose.yaml"])["services"]["server"]["healthcheck"]["test"]
        assert check[:3] == ["CMD", "python", "-c"]
        subprocess.run([sys.executable, "-c", check[3].replace("8000", str(port))], check=True)
