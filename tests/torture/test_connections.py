"""Slow, silent, huge and many connections: an honest client is served throughout, and memory stays bounded."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

import qo
from tests.servers.plain_http import NO_CERTIFICATES

HERE = Path(__file__).parent
MAX_MEMORY = 300 * 1024  # KiB
CONNECTIONS = {False: 40, True: 500}
SECONDS = {False: 1.5, True: 20.0}
SLOWEST = {False: 5.0, True: 1.0}  # seconds; in the short form one late answer says little


class Process:
    """What Linux tells of a process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def seconds_in_queue(self) -> float:
        """How long its threads were ready to run and others ran: the load of the machine, not of the process."""
        queued = [int((task / "schedstat").read_text().split()[1]) for task in (self._folder / "task").iterdir()]
        return sum(queued) / 1e9

    def peak_memory(self) -> int:
        """KiB."""
        return int(re.findall(r"VmHWM:\s+(\d+) kB", (self._folder / "status").read_text())[0])


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_an_honest_client_is_served_beside_hostile_ones(tmp_path: Path, scale: int) -> None:
    is_long = scale > 1
    words = [
        sys.executable,
        "-m",
        "qo",
        "serve",
        "--url",
        f"sqlite:///{tmp_path / 'qo.db'}",
        "--port",
        "0",
        "--log-json",
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(qo.__file__).parents[1])}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        port = next(json.loads(line)["port"] for line in server.stderr if '"port"' in line)
        threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop the server
        tasks = f"http://127.0.0.1:{port}/api/v1/tasks"
        large = {"task_type": "large", "parameters": {"text": "x" * 60_000}}
        for _ in range(2):
            assert httpx.post(f"{tasks}/bulk", json={"tasks": [large] * 10}).status_code == 201
        words = [str(port), str(CONNECTIONS[is_long]), str(SECONDS[is_long])]
        both = Process(server.pid), Process(os.getpid())
        times = []
        with subprocess.Popen([sys.executable, str(HERE / "hostile_clients.py"), *words]) as hostile:
            while hostile.poll() is None:
                queued, began = sum(each.seconds_in_queue() for each in both), time.monotonic()
                with httpx.Client(timeout=60, verify=NO_CERTIFICATES) as client:  # a new connection each time
                    made = client.post(tasks, json={"task_type": "honest"})
                    took = time.monotonic() - began
                    times.append(took - (sum(each.seconds_in_queue() for each in both) - queued))
                    assert made.status_code == 201
                    assert client.get(f"{tasks}?type=honest&limit=5").status_code == 200
                time.sleep(0.02)  # between two calls; nothing is timed by it
        peak = both[0].peak_memory()
        server.terminate()
    print(f"{len(times)} submits, the slowest in {max(times):.3f} s; {peak / 1024:.0f} MiB at most")  # noqa: T201
    assert peak < MAX_MEMORY
    assert max(times) < SLOWEST[is_long]
