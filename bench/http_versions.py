"""HTTP figures of two source trees in one alternating run: `python -m bench.http_versions OLD NEW [ROUNDS]`.

OLD and NEW are folders with `src/qo` in them. Each has a server of its own. In each round the same client sends single
submits, bulk submits and reads of one task to one server and then to the other. Printed are, over the rounds, the median
and the best of the requests a second, and of the processor time of the server for each request, which other programs on
the machine lengthen less. `x` is NEW against OLD.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from bench.http_submits import MANY, ONE, measure_calls, request

_SECONDS = 1.0  # of one load in one round
_TICKS = os.sysconf("SC_CLK_TCK")


class TreeServer:
    """`qo serve` of one source tree, on SQLite."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self._pid, self.port = process.pid, port
        made = httpx.post(
            f"http://127.0.0.1:{port}/api/v1/tasks", content=ONE, headers={"Content-Type": "application/json"}
        )
        self.task_id = made.json()["task_id"]

    def cpu_time(self) -> float:
        """Seconds of processor time, of all threads."""
        fields = Path(f"/proc/{self._pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def serving(tree: str, folder: Path) -> Iterator[TreeServer]:
    words = [sys.executable, "-m", "qo", "serve", "--url", f"sqlite:///{folder}/load.db", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(Path(tree).absolute() / "src")}
    server = subprocess.Popen(
        [*words, "--no-monitor", "--log-json"], stderr=subprocess.PIPE, text=True, env=environment, cwd=folder
    )
    try:
        assert server.stderr is not None
        port = next(json.loads(line)["port"] for line in server.stderr if '"port"' in line)
        threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop the server
        yield TreeServer(server, port)
    finally:
        server.kill()
        server.wait()


LOADS: dict[str, tuple[Callable[[TreeServer], bytes], int]] = {  # the request, and the number of connections
    "single": (lambda _: request("/api/v1/tasks", ONE), 32),
    "bulk": (lambda _: request("/api/v1/tasks/bulk", MANY), 2),
    "get": (lambda server: request(f"/api/v1/tasks/{server.task_id}", b"", method="GET"), 32),
}


def main() -> None:
    trees = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    rates, costs = defaultdict[tuple[str, int], list[float]](list), defaultdict[tuple[str, int], list[float]](list)
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in trees]
        servers = [stack.enter_context(serving(tree, folder)) for tree, folder in zip(trees, folders, strict=True)]
        for nth in range(rounds):
            for load, (make, connections) in LOADS.items():
                for place in (0, 1) if nth % 2 else (1, 0):
                    server = servers[place]
                    began = server.cpu_time()
                    done, took = asyncio.run(measure_calls(server.port, make(server), connections, _SECONDS))
                    rates[load, place].append(done / took)
                    costs[load, place].append(1e6 * (server.cpu_time() - began) / done)
    print(f"{rounds} rounds of {_SECONDS:g} s, load average {os.getloadavg()[1]:.0f}")
    for name, figures, best in (("requests/s", rates, max), ("server µs/request", costs, min)):
        for load in LOADS:
            old, new = figures[load, 0], figures[load, 1]
            both = (("median", statistics.median(old), statistics.median(new)), ("best", best(old), best(new)))
            text = "   ".join(f"{what} {one:8,.0f} {other:8,.0f} {other / one:5.2f} x" for what, one, other in both)
            print(f"{load:7} {name:18} {text}")


if __name__ == "__main__":
    main()
