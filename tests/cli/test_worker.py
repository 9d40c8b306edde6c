"""Real worker processes: signals, exit codes, supervisors."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROCESS_TIMEOUT, Qo
from tests.engines.newer_build import NewerSqlite

QUICK = ("--lease", "60", "--heartbeat", "0.2", "--poll", "0.1", "--check-interval", "0.2")
SHORT_LEASE = (*QUICK, "--lease", "1", "--expiry-grace", "0.1")  # a busy machine may pause a worker for longer


def status(call: Any, task_id: str) -> str:
    return str(call.json("status", task_id)["status"])


def children(process: subprocess.Popen[str]) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def kill_at_once(supervisor: subprocess.Popen[str]) -> None:
    """A child would hand its tasks back after the end of the supervisor, which would replace a killed child."""
    pids = children(supervisor)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in [supervisor.pid, *pids]:
        os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_worker_drains_and_ends(call: Any, processes: Any) -> None:
    done, failed = call.submit("add", "--input", '{"a": 1, "b": 2}'), call.submit("broken", "--max-retries", "0")
    out = processes.run("worker", "jobs", "--drain", "--id", "w1", "--json")
    assert json.loads(out) == {"worker_id": "w1", "exit_code": 0}
    task = call.json("status", done)
    assert (task["status"], task["result"], task["worker_id"]) == ("completed", 3, "w1")
    assert status(call, failed) == "failed"


def test_the_log_is_for_people_or_for_machines(call: Any, processes: Any) -> None:
    task_id = call.submit("broken", "--max-retries", "0")
    worker = processes.start("worker", "jobs:app", "--drain")
    assert worker.wait(PROCESS_TIMEOUT) == 0
    log = processes.log(worker)
    assert "qo worker" in log and "[bold]no[/bold]" in log and "\x1b" not in log
    again = call.submit("broken", "--max-retries", "0")
    worker = processes.start("worker", "jobs:app", "--drain", "--log-json")
    assert worker.wait(PROCESS_TIMEOUT) == 0
    lines = [json.loads(line) for line in processes.log(worker).splitlines()]
    assert again != task_id and any(line.get("task_id") == again and line["level"] == "error" for line in lines)


def test_a_worker_accepts_long_and_short_durations(processes: Any) -> None:
    """The supervisor passes them on to its processes as text."""
    store = Qo(f"file://{processes.folder}/folder")
    store.submit("add", "--input", '{"a": 1, "b": 2}')
    durations = ("--scan-interval", "30d", "--poll", "0.00001", "--retention", "3000w", "--expiry-grace", "0.00001")
    processes.run("--url", store.url, "worker", "jobs:app", "--drain", *durations)
    assert store.json("stats")["completed"] == 1


def test_a_lifespan_that_cannot_be_entered_ends_a_worker(processes: Any) -> None:
    (processes.folder / "life.py").write_text(
        "import qo\napp = qo.App()\n"
        "@app.task\ndef work(): ...\n"
        "@app.lifespan\nasync def database():\n    raise ConnectionError('no database')\n    yield\n"
    )
    worker = processes.start("worker", "life:app")
    assert worker.wait(PROCESS_TIMEOUT) == 1
    assert "the lifespan raised ConnectionError: no database" in processes.log(worker)


def test_sigterm_lets_running_tasks_finish(call: Any, processes: Any, eventually: Any) -> None:
    ids = [call.submit("nap", "--input", '{"seconds": 3}') for _ in range(2)]
    worker = processes.start("worker", "jobs", "--concurrency", "1", "--poll", "0.1")  # a short lease may be lost
    eventually(lambda: len(call.json("workers")) == 1)
    eventually(lambda: "running" in [status(call, task_id) for task_id in ids])
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PROCESS_TIMEOUT) == 0
    assert sorted(status(call, task_id) for task_id in ids) == ["completed", "pending"]
    assert call.json("workers") == []


def test_a_second_signal_hands_everything_back(call: Any, processes: Any, eventually: Any) -> None:
    task_id = call.submit("nap", "--input", '{"seconds": 600}')
    worker = processes.start("worker", "jobs", *QUICK)
    eventually(lambda: status(call, task_id) == "running")
    worker.send_signal(signal.SIGINT)
    eventually(lambda: "stopping" in processes.log(worker))
    worker.send_signal(signal.SIGINT)
    assert worker.wait(PROCESS_TIMEOUT) == 130
    task = call.json("status", task_id)
    assert (task["status"], task["failures"]) == ("pending", 0)


def test_grace_bounds_a_shutdown(call: Any, processes: Any, eventually: Any) -> None:
    task_id = call.submit("nap", "--input", '{"seconds": 600}')
    worker = processes.start("worker", "jobs", "--grace", "0.2", *QUICK)
    eventually(lambda: status(call, task_id) == "running")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PROCESS_TIMEOUT) == 0
    assert status(call, task_id) == "pending"


def test_submit_waits_for_the_result(processes: Any) -> None:
    processes.start("worker", "jobs", *QUICK)
    answer = json.loads(
        processes.run("submit", "--type", "add", "--input", '{"a": 2, "b": 3}', "--wait", "20", "--json")
    )
    assert (answer["status"], answer["result"], answer["new"]) == ("completed", 5, True)
    failed = processes.run("submit", "--type", "broken", "--max-retries", "0", "--wait", code=1)
    assert "[bold]no[/bold]" in failed and "\x1b" not in failed


def test_an_id_that_is_no_name_is_refused(call: Any) -> None:
    assert call.error("worker", "jobs", "--id", "../x", code=2)["field"] == "id"


# --- supervisors


def test_a_killed_child_is_replaced_and_its_task_runs_again(call: Any, processes: Any, eventually: Any) -> None:
    call.submit("version")  # makes the queue, so that it can be looked at
    supervisor = processes.start("worker", "jobs", "--processes", "2", "--id", "f", *SHORT_LEASE)
    eventually(lambda: {one["worker_id"] for one in call.json("workers")} == {"f-1", "f-2"})
    task_id = call.submit("hold_once")
    eventually((processes.folder / "held").exists)  # the handler has begun: only then is the attempt charged
    victim = call.json("status", task_id)["worker_id"]
    pid = next(one["pid"] for one in call.json("workers") if one["worker_id"] == victim)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: any(w["worker_id"] == victim and w["pid"] != pid for w in call.json("workers")))
    eventually(lambda: status(call, task_id) == "completed")
    assert call.json("status", task_id)["failures"] == 1
    assert f"worker {victim} was killed by SIGKILL" in processes.log(supervisor)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(PROCESS_TIMEOUT) == 0
    assert call.json("workers") == []


def test_a_handler_that_leaves_with_code_0_does_not_end_a_draining_fleet(call: Any, processes: Any) -> None:
    died, other = call.submit("die_once"), call.submit("add", "--input", '{"a": 1, "b": 1}')
    supervisor = processes.start("worker", "jobs", "--processes", "1", "--reload", "--drain", *QUICK)
    assert supervisor.wait(PROCESS_TIMEOUT) == 0
    assert "exited with code 0; restarting it" in processes.log(supervisor)
    # A drain does not wait for leases of the dead: what the first child held may still run, or wait for another try.
    assert {status(call, other), status(call, died)} <= {"completed", "running", "pending"}


def test_a_fleet_drains_and_ends(call: Any, processes: Any) -> None:
    ids = [call.submit("add", "--input", '{"a": 1, "b": 1}') for _ in range(20)]
    assert (
        json.loads(processes.run("worker", "jobs", "--processes", "2", "--drain", "--json", *QUICK))["exit_code"] == 0
    )
    assert {status(call, task_id) for task_id in ids} == {"completed"}


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_children_do_not_outlive_a_killed_parent(call: Any, processes: Any, eventually: Any) -> None:
    call.submit("version")
    supervisor = processes.start("worker", "jobs", "--processes", "2", *SHORT_LEASE)
    eventually(lambda: len(call.json("workers")) == 2)
    pids = children(supervisor)
    assert len(pids) == 2
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    eventually(lambda: all(gone(pid) for pid in pids))
    assert call.json("workers") == []  # they said goodbye: it was an orderly end


def test_a_second_signal_to_a_fleet_hands_everything_back(call: Any, processes: Any, eventually: Any) -> None:
    task_id = call.submit("nap", "--input", '{"seconds": 600}')
    supervisor = processes.start("worker", "jobs", "--processes", "2", *QUICK)
    eventually(lambda: status(call, task_id) == "running")
    supervisor.send_signal(signal.SIGINT)
    eventually(lambda: "stopping" in processes.log(supervisor))
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(PROCESS_TIMEOUT) == 130
    assert status(call, task_id) == "pending"


def test_reload_restarts_with_the_new_code(call: Any, processes: Any, eventually: Any) -> None:
    supervisor = processes.start("worker", "jobs", "--reload", *QUICK)

    def answer() -> Any:
        task_id = call.submit("version")
        eventually(lambda: status(call, task_id) == "completed")
        return call.json("status", task_id)["result"]

    assert answer() == "one"
    source = processes.folder / "jobs.py"
    source.write_text(source.read_text().replace('VERSION = "one"', "VERSION = broken syntax"))
    eventually(lambda: "cannot start" in processes.log(supervisor))
    source.write_text(source.read_text().replace("VERSION = broken syntax", 'VERSION = "three"'))
    eventually(lambda: answer() == "three")
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(PROCESS_TIMEOUT) == 0


def test_workers_monitors_and_servers_end_when_a_newer_qo_has_upgraded_the_store(
    call: Any, processes: Any, eventually: Any
) -> None:
    """Another child would be refused as well."""
    call.submit("version")  # a monitor makes no queue
    monitor = processes.start("monitor", "--check-interval", "0.2")
    supervisor = processes.start("worker", "jobs", "--processes", "2", "--id", "f", *QUICK)
    eventually(lambda: all(f"worker f-{number} started" in processes.log(supervisor) for number in (1, 2)))
    server = processes.start("serve", "--port", "0", "--check-interval", "0.2")
    eventually(lambda: "monitor started" in processes.log(monitor))
    eventually(lambda: "serving at" in processes.log(server))
    asyncio.run(NewerSqlite(call.url).upgrade(is_additive=False))
    for process in (supervisor, monitor, server):
        assert process.wait(PROCESS_TIMEOUT) == 5, processes.log(process)
        log = processes.log(process)
        assert "use qo 9.9.0 or newer" in log
        assert "restarting" not in log
        assert "Traceback" not in log


# --- monitor and demo


def test_a_monitor_alone_expires_what_a_dead_worker_held(call: Any, processes: Any, eventually: Any) -> None:
    task_id = call.submit("nap", "--input", '{"seconds": 600}')
    worker = processes.start("worker", "jobs", "--no-monitor", *SHORT_LEASE)
    eventually(lambda: status(call, task_id) == "running")
    kill_at_once(worker)
    eventually(lambda: call.json("monitor", "--once", "--expiry-grace", "0.1")["expired"] == 1)
    assert call.json("status", task_id)["failures"] == 1
    monitor = processes.start("monitor", "--check-interval", "0.2")
    eventually(lambda: "monitor started" in processes.log(monitor))
    monitor.send_signal(signal.SIGTERM)
    assert monitor.wait(PROCESS_TIMEOUT) == 0


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qo.demo"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("after the fire time, and completed", " of 500", "SIGKILL", "Everything worked as expected"):
        assert words in done.stdout
    assert "export QO_URL=" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.partition("The store of the demo is kept")[0].splitlines())


# --- asked to leave


def names(call: Any) -> set[str]:
    return {worker["worker_id"] for worker in call.json("workers")}


def test_a_worker_asked_to_drain_exits(call: Any, processes: Any, eventually: Any) -> None:
    call.submit("add", "--input", '{"a": 1, "b": 2}')
    worker = processes.start("worker", "jobs", "--id", "w1", *QUICK)
    eventually(lambda: "w1" in names(call))
    assert "no worker w2" in call.error("workers", "drain", "w2", code=3)["error"]
    assert call.json("workers", "drain", "w1") == {"draining": ["w1"]}
    assert worker.wait(PROCESS_TIMEOUT) == 0 and "drain requested" in processes.log(worker)
    assert names(call) == set()


def test_a_drained_child_of_a_fleet_is_not_replaced(call: Any, processes: Any, eventually: Any) -> None:
    call.submit("add", "--input", '{"a": 1, "b": 2}')
    supervisor = processes.start("worker", "jobs", "--processes", "2", "--id", "f", *QUICK)
    eventually(lambda: names(call) == {"f-1", "f-2"})
    call("workers", "drain", "f-1")
    eventually(lambda: names(call) == {"f-2"})
    call("workers", "drain", "f-2")
    assert supervisor.wait(PROCESS_TIMEOUT) == 0  # nobody is left, and nobody is started


def test_a_worker_may_serve_some_shards_of_a_bucket(processes: Any, tmp_path: Path) -> None:
    bucket = Qo(f"file://{tmp_path}/bucket")
    ids = [bucket.submit("add", "--input", '{"a": 1, "b": 2}') for _ in range(12)]
    processes.url = bucket.url
    processes.run("worker", "jobs", "--drain", "--shards", "0-7", "--index-mode", "index-only", "--processes", "2")
    done = {task["id"] for task in bucket.json("list", "--status", "completed")["tasks"]}
    assert done == {task_id for task_id in ids if task_id[0] < "8"}
    processes.run("worker", "jobs", "--drain", "--shards", "8,9,a-f", "--scan-interval", "1m")
    assert len(bucket.json("list", "--status", "completed")["tasks"]) == 12
