"""stdin, stdout and stderr of real processes: slow, closed and full ones, and Ctrl-C."""

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.servers.process import ROOT, free_port

TIMEOUT = 60.0  # seconds; the machine may be busy
# A shell starts what it runs in the background with SIGINT ignored, and child processes inherit that.
WITH_CTRL_C = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from qo.cli import main; main(sys.argv[1:])"
)


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}


def shell(command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run `qo ...` in a shell, which closes or redirects its streams."""
    words = f"exec {shlex.quote(sys.executable)} -m qo {command}"
    return subprocess.run(
        ["/bin/sh", "-c", words],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def start(url: str, *words: str, **streams: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", WITH_CTRL_C, "--url", url, *words], env=environment(), **streams)


def test_lines_of_a_slow_program_are_submitted_before_it_ends(call: Any, eventually: Callable[..., Any]) -> None:
    call.submit()  # creates the store
    with start(call.url, "submit", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"type": "first"}\n{"type": "second"}\n{"type": "thi')
        process.stdin.flush()
        assert eventually(lambda: call.json("stats")["pending"] == 3)
        assert process.poll() is None
        out, _ = process.communicate(b'rd"}', timeout=TIMEOUT)
    assert out == b"3 tasks submitted\n"
    assert set(call.json("stats")["by_type"]) == {"add", "first", "second", "third"}


def test_ctrl_c_ends_a_submit_that_waits_for_lines(call: Any, eventually: Callable[..., Any]) -> None:
    call.submit()
    with start(call.url, "submit", "-", stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"type": "first"}\n')
        process.stdin.flush()
        assert eventually(lambda: call.json("stats")["pending"] == 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert b"1 task submitted" in err


def test_an_invalid_line_is_the_only_error_while_more_lines_arrive(call: Any) -> None:
    call.submit()
    lines = b"invalid\n" + b'{"type": "add"}\n' * 50_000
    for _ in range(5):  # the event loop ends at some point of a read
        with start(call.url, "submit", "-", stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            _, err = process.communicate(lines, timeout=TIMEOUT)
        assert len(err.splitlines()) == 1


def test_ctrl_c_at_a_question_begins_a_new_line(call: Any) -> None:
    call.submit()
    terminal, given = pty.openpty()
    with start(call.url, "cancel", "--type", "add", stdin=given, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        os.close(given)
        assert b"Cancel 1 task?" in os.read(process.stderr.fileno(), 1000)
        while process.poll() is None:  # Python does not see a signal that comes between the question and the read
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        assert process.stderr.read().endswith(b"\nerror: interrupted\n")
    os.close(terminal)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("command", ["list", "list --json", "stats", "--help"])
def test_a_full_disk_under_stdout_is_an_error_in_one_line(call: Any, tmp_path: Path, command: str) -> None:
    call.submit()
    result = shell(f"{command} >/dev/full", tmp_path)
    assert result.returncode == 1
    assert "cannot write the output: No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_closed_stdout_is_no_error(call: Any, tmp_path: Path) -> None:
    call.submit()
    result = shell("list >&-", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("streams", [">&- 2>&-", ">/dev/full 2>&1"])
def test_a_worker_that_cannot_write_its_log_runs_its_tasks(
    call: Any, processes: Any, tmp_path: Path, streams: str
) -> None:
    assert processes.folder == tmp_path
    task_id = call.submit("add", "--input", '{"a": 1, "b": 2}')
    shell(f"worker jobs --drain --url {call.url} {streams}", tmp_path)
    assert call.json("status", task_id)["result"] == 3


@pytest.mark.parametrize("streams", [">&- 2>&-", ">/dev/full 2>&1"])
def test_a_server_that_cannot_write_its_log_answers(
    call: Any, tmp_path: Path, streams: str, eventually: Callable[..., Any]
) -> None:
    call.submit()
    port = free_port()
    words = f"exec {shlex.quote(sys.executable)} -m qo serve --port {port} --url {call.url} {streams}"
    with subprocess.Popen(["/bin/sh", "-c", words], cwd=tmp_path, env=environment()) as process:
        remote = f"http://127.0.0.1:{port}"
        try:
            assert eventually(lambda: _answer(process, remote))
            assert _answer(process, remote)  # after the first lines of its log
        finally:
            process.terminate()


def _answer(process: "subprocess.Popen[bytes]", url: str) -> bool:
    assert process.poll() is None
    try:
        with urlopen(f"{url}/healthz", timeout=TIMEOUT) as response:
            return bool(response.status == 200)
    except URLError:
        return False
