"""A worker ends when it is told to, even if its store accepts everything and answers nothing."""

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qo import sync
from tests.cli.conftest import Processes
from tests.servers.postgres import PostgresServer
from tests.servers.redis import Server

QUICK = ("--lease", "600", "--heartbeat", "1", "--poll", "0.2")


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


@pytest.fixture
def stores(
    postgres: PostgresServer, redis_server: Server, processes: Processes, eventually: Any
) -> dict[str, tuple[str, int]]:
    """For each kind of store a URL, and the process that answers there."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE frozen")
    server = processes.start("serve", "--port", "0", "--no-monitor")
    port = eventually(lambda: re.search(r"serving at http://127\.0\.0\.1:(\d+)", processes.log(server)))[1]
    return {
        "postgres": (postgres.url("frozen"), postgres.pid()),
        "redis": (f"{redis_server.url}?prefix=frozen", redis_server.pid()),
        "http": (f"http://127.0.0.1:{port}", server.pid),
    }


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_a_worker_whose_store_is_frozen_exits_when_stopped(
    stores: dict[str, tuple[str, int]], processes: Processes, eventually: Any
) -> None:
    """All stores in one test, so that the waits overlap."""
    once, twice = (
        {name: start(processes, url, grace) for name, (url, _) in stores.items()} for grace in ("0.1", "600")
    )
    for worker in (*once.values(), *twice.values()):  # one that is told to stop before it has started says nothing
        eventually(lambda: " started" in processes.log(worker))  # noqa: B023
    for url, _ in stores.values():
        with sync.connect(url) as client:
            naps = [client.enqueue("nap", {"seconds": 600}) for _ in range(2)]
            eventually(lambda: all(nap.status() == "running" for nap in naps))  # noqa: B023
    frozen = [each for _, pid in stores.values() for each in family(pid)]
    tell(frozen, signal.SIGSTOP)
    try:
        for worker in (*once.values(), *twice.values()):
            worker.send_signal(signal.SIGTERM)
        for worker in twice.values():
            eventually(lambda: "stopping" in processes.log(worker))  # noqa: B023
            worker.send_signal(signal.SIGTERM)
        assert {name: worker.wait(30) for name, worker in once.items()} == dict.fromkeys(stores, 0)
        assert {name: worker.wait(30) for name, worker in twice.items()} == dict.fromkeys(stores, 130)
    finally:
        tell(frozen, signal.SIGCONT)


def tell(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def start(processes: Processes, url: str, grace: str) -> subprocess.Popen[str]:
    return processes.start("worker", "jobs", "--url", url, "--concurrency", "1", "--grace", grace, *QUICK)
