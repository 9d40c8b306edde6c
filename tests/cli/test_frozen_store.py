"""A worker ends when it is told to, even if its store accepts everything and answers nothing."""

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qo import sync
from tests.cli.conftest import Processes
from tests.servers.postgres import PostgresServer
from tests.servers.redis import Server, free_port

QUICK = ("--lease", "600", "--heartbeat", "1", "--poll", "0.2")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


@pytest.fixture(params=["postgres", "redis", "http"])
def store(request: pytest.FixtureRequest, processes: Processes, eventually: Any) -> tuple[str, int]:
    """A URL, and the process that answers there."""
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE frozen")
        return postgres.url("frozen"), postgres.pid()
    if request.param == "redis":
        redis: Server = request.getfixturevalue("redis_server")
        return f"{redis.url}?prefix=frozen", redis.pid()
    port = free_port()
    server = processes.start("serve", "--port", str(port), "--no-monitor")
    eventually(lambda: listens(port))
    return f"http://127.0.0.1:{port}", server.pid


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_a_worker_whose_store_is_frozen_ends_when_told_to(
    store: tuple[str, int], processes: Processes, eventually: Any
) -> None:
    url, pid = store
    with sync.connect(url) as queue:
        ids = [queue.enqueue("nap", {"seconds": 600}).id for _ in range(2)]
        workers = [start(processes, url, grace) for grace in ("1", "600")]
        eventually(lambda: all(queue.get(task_id).status == "running" for task_id in ids))
        tell(family(pid), signal.SIGSTOP)
        try:
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            assert workers[0].wait(30) == 0
            workers[1].send_signal(signal.SIGTERM)
            assert workers[1].wait(30) == 130
        finally:
            tell(family(pid), signal.SIGCONT)


def tell(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def start(processes: Processes, url: str, grace: str) -> subprocess.Popen[str]:
    return processes.start("worker", "jobs", "--url", url, "--concurrency", "1", "--grace", grace, *QUICK)
