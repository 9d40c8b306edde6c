"""The `qo worker` processes of the demo, which end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from qo.demo.tasks import FOLDER

_FAST_OPTIONS = (
    "--lease",
    "2",
    "--heartbeat",
    "1",
    "--poll",
    "0.2",
    "--check-interval",
    "0.5",
    "--expiry-grace",
    "0.5",
)
_STOP_TIMEOUT = 15.0  # seconds


class DemoWorkers:
    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._log = (self._folder / "workers.log").open("ab")
        return self

    def start(self, name: str, *options: str) -> str:
        """Start a worker; returns its command for display."""
        command = ["worker", "qo.demo.tasks:app", "--id", name, *options]
        environment = os.environ | {FOLDER: str(self._folder), "PYTHONUNBUFFERED": "1"}
        self._running[name] = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "qo", *command, *_FAST_OPTIONS, "--url", self._url],
            env=environment,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
        )
        return " ".join(["qo", *command])

    def kill(self, name: str, pid: int) -> None:
        """Send SIGKILL to the worker's process and to its supervisor, which would replace it.

        The process is stopped first: when its supervisor ends, it hands its tasks back.
        """
        supervisor = self._running.pop(name)
        os.kill(pid, signal.SIGSTOP)
        for each in (supervisor.pid, pid):
            os.kill(each, signal.SIGKILL)
        supervisor.wait()

    def are_alive(self) -> bool:
        return all(process.poll() is None for process in self._running.values())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()
